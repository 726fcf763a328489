// `npm run bench:vfs`: how many MB/s of files are written to and read from the VirtualFS server, and how long a small file takes, held to the
// object store's own routes in alternation in the same run; and the memory of the conductor while 1 GB flows through its proxy, up and
// down. See docs/performance.md.
import { randomBytes } from 'node:crypto'
import { mkdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { request } from 'undici'
import { changedRole, command, dataDirectory } from './cluster.ts'
import { say, withProcesses } from './command.ts'
import type { Processes } from './processes.ts'
import { environment, liftTransferLimit, operating } from './service.ts'
import { median } from './statistics.ts'
import { draw, shown } from './table.ts'

const mib = 1024 * 1024
const rounds = 5
const clients = 4
const sizes = { '64 KiB': [64 * 1024, 8 * mib], '8 MiB': [8 * mib, 128 * mib] } as const
const flowBytes = 1_000_000_000

interface Place {
  readonly base: string
  readonly headers: Readonly<Record<string, string>>
}

async function transfer({ base, headers }: Place, name: string, body?: Buffer): Promise<number> {
  const began = performance.now()
  const type = { 'content-type': 'application/octet-stream', accept: 'application/octet-stream' }
  const reply = await request(`${base}/${name}`, {
    method: body ? 'PUT' : 'GET',
    headers: { ...headers, ...type },
    ...(body ? { body } : {}),
  })
  if (reply.statusCode >= 300)
    throw new Error(`${base}/${name} answers ${reply.statusCode}: ${await reply.body.text()}`)
  for await (const _ of reply.body);
  return performance.now() - began
}

/** MB/s of `clients` that each write or read files of one size, one after another. */
async function rate(place: Place, [size, flow]: readonly [number, number], write: boolean): Promise<number> {
  const body = write ? randomBytes(size) : undefined
  const each = Math.max(1, Math.round(flow / size / clients))
  const began = performance.now()
  await Promise.all(
    Array.from({ length: clients }, async (_, n) => {
      for (let i = 0; i < each; i++) await transfer(place, `bench-${size}-${n}-${i % 8}`, body)
    }),
  )
  return (each * clients * size) / 1e6 / ((performance.now() - began) / 1_000)
}

/** The median of milliseconds for one file of 4 KiB, one after another. */
async function latency(place: Place, write: boolean): Promise<number> {
  const body = write ? randomBytes(4096) : undefined
  const taken: number[] = []
  for (let i = 0; i < 100; i++) taken.push(await transfer(place, `small-${i % 10}`, body))
  return median(taken)
}

/** The resident memory of a process now, and the largest so far; MiB. */
async function memory(pid: number): Promise<{ now: number; peak: number }> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
  const of = (name: string): number => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(status)?.[1] ?? 0) / 1024
  return { now: of('VmRSS'), peak: of('VmHWM') }
}

/** The development role without its own server, and the role of one, which has a folder beside the objects. */
async function start(processes: Processes) {
  const data = await dataDirectory(processes)
  const path = join(data, 'mounted')
  await mkdir(path, { recursive: true })
  const folder = { kind: 'folder', path, tenants: ['default'] }
  const file = await changedRole('vfs', data, 'vfs', ({ mounts }) => ({ mounts: { ...(mounts as object), folder } }))
  const key = { VFS_INTERNAL_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64') }
  const objects = join(data, 'objects')
  const server = await processes.node([...command('start'), '--json', '--config', file], {
    ...environment('http://127.0.0.1:9'),
    ...key,
    VFS_PORT: '0',
    AGENT_ORC_OPERATIONS_PORT: '0',
    AGENT_ORC_VFS_DIR: join(data, 'vfs'),
    AGENT_ORC_STORAGE_DIR: objects,
  })
  const { vfs } = (server.line as { urls: Record<string, string> }).urls
  const dev = await processes.node([...command('dev'), '--json', '--port', '0', '--data', data], {
    ...environment('http://127.0.0.1:9'),
    ...key,
    ...operating,
    VFS_BASE_URL: vfs!,
  })
  const { conductorUrl, apiKey } = dev.line as Record<string, string>
  await liftTransferLimit(conductorUrl!, apiKey!)
  return { server, dev, line: dev.line as Record<string, string> }
}

async function flow({ base, headers }: Place, pid: number) {
  const before = (await memory(pid)).now
  let most = before
  const watch = setInterval(() => void memory(pid).then(({ now }) => (most = Math.max(most, now))), 100)
  const chunk = randomBytes(mib)
  const body = async function* (): AsyncGenerator<Buffer> {
    for (let sent = 0; sent < flowBytes; sent += chunk.length) yield chunk
  }
  const url = `${base}/gigabyte`
  const began = performance.now()
  const put = await request(url, { method: 'PUT', headers, body: Readable.from(body(), { objectMode: false }) })
  if (put.statusCode >= 300) throw new Error(`${url} answers ${put.statusCode}: ${await put.body.text()}`)
  await put.body.dump()
  const up = performance.now() - began
  const got = await request(url, { headers })
  let bytes = 0
  for await (const part of got.body) bytes += (part as Buffer).length
  clearInterval(watch)
  const down = performance.now() - began - up
  return { before, most, up: bytes / 1e3 / up, down: bytes / 1e3 / down }
}

await withProcesses(async (processes) => {
  const { dev, line } = await start(processes)
  const headers = { authorization: `Bearer ${line['apiKey']}` }
  const vfs = { base: `${line['conductorUrl']}/api/vfs/files/objects`, headers }
  const store = { base: `${line['conductorUrl']}/api/storage/objects`, headers }
  const found: Record<string, { vfs: number[]; store: number[]; unit: string }> = {}
  for (let round = -1; round < rounds; round++) {
    say(round < 0 ? 'warming up' : `round ${round + 1} of ${rounds}`)
    for (const write of [true, false]) {
      const what = write ? 'write' : 'read'
      const add = (name: string, unit: string, mine: number, theirs: number): void => {
        if (round < 0) return
        const row = (found[name] ??= { vfs: [], store: [], unit })
        row.vfs.push(mine)
        row.store.push(theirs)
      }
      for (const [name, size] of Object.entries(sizes)) {
        add(`${what}, ${name} each`, 'MB/s', await rate(vfs, size, write), await rate(store, size, write))
      }
      add(`${what}, 4 KiB, p50`, 'ms', await latency(vfs, write), await latency(store, write))
    }
  }
  say('1 GB up and down')
  const flowed = await flow({ base: `${line['conductorUrl']}/api/vfs/files/folder`, headers }, dev.child.pid!)
  const rows = Object.entries(found).map(([what, { vfs: mine, store: theirs, unit }]) => {
    const ratio = median(mine.map((one, i) => one / theirs[i]!))
    const digits = unit === 'ms' ? 2 : 0
    return [what, unit, shown(median(mine), digits), shown(median(theirs), digits), `${shown(ratio, 2)}x`]
  })
  process.stdout.write(`${draw([[`${clients} clients`, '', 'VFS', 'object store', 'VFS to it'], ...rows])}\n`)
  const { before, most, up, down } = flowed
  process.stdout.write(
    `1 GB through the proxy: ${shown(up, 0)} MB/s up, ${shown(down, 0)} MB/s down; memory of the conductor's process, MiB: ${shown(before, 0)} before, ${shown(most, 0)} at most\n`,
  )
  process.stdout.write(`${JSON.stringify({ node: process.version, found, flowed })}\n`)
})
