// `npm run bench:egress`: what a request out of a sandbox costs over its runner, held to the same request sent straight to the host,
// in alternation in the same run; the host, the runner and who asks are in one process. See docs/performance.md.
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { Agent, type Dispatcher, request } from 'undici'
import { egressOf, tlsHost } from '../../plugins/sandboxes/test/hosts.ts'
import { say } from './command.ts'
import { median, quantile } from './statistics.ts'
import { draw, shown } from './table.ts'

const cells = [
  { label: 'answer of 1 KiB', path: '/small', rounds: 2_000, warm: 200 },
  { label: 'answer of 16 MiB', path: '/large', rounds: 20, warm: 3 },
] as const

const ends: (() => unknown)[] = []
const scope = { after: (end: () => unknown): void => void ends.push(end) }

const small = randomBytes(1024)
const large = randomBytes(16 * 1024 * 1024)
const host = await tlsHost(scope, ({ target }, response) => void response.end(target === '/large' ? large : small))
const entry = { host: 'localhost', port: host.port, own: true, headers: { authorization: 'Bearer secret://token' } }
const secrets = { token: randomBytes(32).toString('base64') }
const { access } = await egressOf(scope as Parameters<typeof egressOf>[0], { hosts: [entry], secrets })

const ca = await readFile(new URL('../certificates/ca.pem', import.meta.url), 'utf8')
const direct = new Agent({ connect: { ca } })
const inside = new Agent()

async function timed(dispatcher: Dispatcher, url: string, authorization: string): Promise<number> {
  const began = performance.now()
  const { statusCode, body } = await request(url, { dispatcher, headers: { authorization } })
  await body.arrayBuffer()
  if (statusCode !== 200) throw new Error(`${url} answers ${statusCode}`)
  return performance.now() - began
}

const p50: Record<string, { direct: number; egress: number }> = {}
const rows: string[][] = []
for (const { label, path, rounds, warm } of cells) {
  say(label)
  const ms = { direct: [] as number[], egress: [] as number[] }
  for (let round = -warm; round < rounds; round++) {
    const straight = await timed(direct, `https://${host.name}${path}`, `Bearer ${secrets.token}`)
    const over = await timed(inside, `${access.baseUrl}/${host.name}${path}`, `Bearer ${access.key}`)
    // Not kept by the host's list of what it was asked.
    host.asked.length = 0
    if (round < 0) continue
    ms.direct.push(straight)
    ms.egress.push(over)
  }
  p50[path] = { direct: median(ms.direct), egress: median(ms.egress) }
  for (const way of ['direct', 'egress'] as const) {
    const ratio = median(ms[way]) / median(ms.direct)
    rows.push([`${label}, ${way}`, shown(median(ms[way]), 2), shown(quantile(ms[way], 0.99), 2), `${shown(ratio, 2)}x`])
  }
}
process.stdout.write(`${draw([['one client', 'p50 ms', 'p99 ms', 'p50 to direct'], ...rows])}\n`)
process.stdout.write(`${JSON.stringify({ node: process.version, p50 })}\n`)
await Promise.all([direct.destroy(), inside.destroy()])
for (const end of ends.toReversed()) await end()
