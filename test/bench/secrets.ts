// `npm run bench:secrets`: what it costs to resolve a secret over the signed plane, held to a signed request that resolves nothing,
// in alternation in the same run. See docs/performance.md.
import { randomBytes } from 'node:crypto'
import { request } from 'undici'
import { createSigner } from '../../plugins/auth/signing/signer.ts'
import { command, dataDirectory } from './cluster.ts'
import { say, withProcesses } from './command.ts'
import type { Processes } from './processes.ts'
import { environment } from './service.ts'
import { median, quantile } from './statistics.ts'
import { draw, shown } from './table.ts'

/** Each is resolved once: the first time it is read from the database. */
const secrets = 500
const warm = 100

const target = '/internal/secrets/resolve'

async function bench(processes: Processes): Promise<Record<string, number[]>> {
  const key = randomBytes(32)
  const env = { ...environment('http://127.0.0.1:9'), VFS_INTERNAL_SIGNING_KEY_CURRENT: key.toString('base64') }
  const data = await dataDirectory(processes)
  const { line } = await processes.node([...command('dev'), '--json', '--port', '0', '--data', data], env)
  const { conductorUrl, internalUrl, apiKey, tenant } = line as Record<string, string>
  const kv = { claim: () => Promise.reject(new Error('this signer verifies nothing')) }
  const signer = createSigner({ family: 'vfs', current: key, kv: kv as never, onRefused() {} })

  const post = async (url: string, body: string, headers: Record<string, string>, expected: number): Promise<void> => {
    const type = { 'content-type': 'application/json' }
    const reply = await request(url, { method: 'POST', headers: { ...headers, ...type }, body })
    const text = await reply.body.text()
    if (reply.statusCode !== expected) throw new Error(`${url} answers ${reply.statusCode}: ${text}`)
  }
  const resolve = async (ref: string, expected: number): Promise<number> => {
    const body = JSON.stringify({ ref })
    const headers = signer.sign({ tenant: tenant!, method: 'POST', target, body: Buffer.from(body) })
    const began = performance.now()
    await post(`${internalUrl}${target}`, body, headers, expected)
    return performance.now() - began
  }
  say(`creating ${secrets} secrets`)
  const value = randomBytes(32).toString('base64')
  for (let n = 0; n < secrets; n++) {
    const body = JSON.stringify({ name: `s${n}`, value })
    await post(`${conductorUrl}/api/secrets`, body, { authorization: `Bearer ${apiKey}` }, 201)
  }
  say('measuring')
  const ms: Record<string, number[]> = { bare: [], known: [], read: [] }
  for (let n = -warm; n < secrets; n++) {
    // What is no reference is refused behind the signature, before anybody looks for it.
    const bare = await resolve('nothing', 400)
    const read = n < 0 ? 0 : await resolve(`secret://s${n}`, 200)
    const known = await resolve(`secret://s${Math.max(0, n)}`, 200)
    if (n < 0) continue
    ms['bare']!.push(bare)
    ms['known']!.push(known)
    ms['read']!.push(read)
  }
  return ms
}

const names = [
  ['bare', 'signed request that resolves nothing'],
  ['known', 'resolve, value in memory'],
  ['read', 'resolve, value read and decrypted'],
] as const

await withProcesses(async (processes) => {
  const ms = await bench(processes)
  const bare = median(ms['bare']!)
  const rows = names.map(([name, label]) => {
    const p50 = median(ms[name]!)
    return [label, shown(p50, 2), shown(quantile(ms[name]!, 0.99), 2), `${shown(p50 / bare, 2)}x`]
  })
  process.stdout.write(`${draw([['one client', 'p50 ms', 'p99 ms', 'p50 to the bare one'], ...rows])}\n`)
  const p50 = Object.fromEntries(names.map(([name]) => [name, median(ms[name]!)]))
  process.stdout.write(`${JSON.stringify({ node: process.version, samples: secrets, p50 })}\n`)
})
