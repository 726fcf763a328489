// `npm run bench:storage`: how many MB/s of objects are uploaded and downloaded, held to a bare Fastify file server that streams to
// and from files of the same disk, in alternation in the same run; and what memory they take. See docs/performance.md.
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { request } from 'undici'
import { command, dataDirectory } from './cluster.ts'
import { say, withProcesses } from './command.ts'
import type { Processes } from './processes.ts'
import { environment } from './service.ts'
import { median } from './statistics.ts'
import { draw, shown } from './table.ts'

const mib = 1024 * 1024
const rounds = 5
const clients = 4
/** Sizes of objects, and the bytes of one measurement with them. */
const sizes = { 'small, 64 KiB': [64 * 1024, 8 * mib], 'large, 8 MiB': [8 * mib, 128 * mib] } as const

/** The largest resident memory of a process so far, and now; MiB. Only where /proc is. */
async function memory(pid: number): Promise<{ now: number; peak: number }> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
  const of = (name: string): number => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(status)?.[1] ?? 0) / 1024
  return { now: of('VmRSS'), peak: of('VmHWM') }
}

interface Server {
  readonly base: string
  readonly headers: Readonly<Record<string, string>>
}

/** MB/s of `clients` that each write or read objects of one size, one after another. */
async function rate({ base, headers }: Server, [size, flow]: readonly [number, number], write: boolean) {
  const body = randomBytes(size)
  const each = Math.max(1, Math.round(flow / size / clients))
  const began = performance.now()
  const client = async (n: number): Promise<void> => {
    for (let i = 0; i < each; i++) {
      const url = `${base}/bench-${size}-${n}-${i % 8}`
      const type = { 'content-type': 'application/octet-stream' }
      const reply = write
        ? await request(url, { method: 'PUT', headers: { ...headers, ...type }, body })
        : await request(url, { headers: { ...headers, accept: 'application/octet-stream' } })
      if (reply.statusCode >= 300) throw new Error(`${url} answers ${reply.statusCode}: ${await reply.body.text()}`)
      let bytes = 0
      for await (const chunk of reply.body) bytes += (chunk as Buffer).length
      if (!write && bytes !== size) throw new Error(`${url}: ${bytes} bytes`)
    }
  }
  await Promise.all(Array.from({ length: clients }, (_, n) => client(n)))
  return (each * clients * size) / 1e6 / ((performance.now() - began) / 1_000)
}

async function bench(processes: Processes) {
  const data = await dataDirectory(processes)
  const served = await processes.node(
    [...command('dev'), '--json', '--port', '0', '--data', data],
    environment('http://127.0.0.1:9'),
  )
  const { conductorUrl, apiKey } = served.line as Record<string, string>
  const bare = await processes.node(
    [new URL('file-server.ts', import.meta.url).pathname, await dataDirectory(processes)],
    environment('http://127.0.0.1:9'),
  )
  const ours = { base: `${conductorUrl}/api/storage/objects`, headers: { authorization: `Bearer ${apiKey}` } }
  const other = { base: String((bare.line as { url: string }).url), headers: {} }
  const rates: Record<string, { ours: number[]; bare: number[] }> = {}
  let before = { now: 0, peak: 0 }
  for (let round = -1; round < rounds; round++) {
    say(round < 0 ? 'warming up' : `round ${round + 1} of ${rounds}`)
    if (round === 0) before = await memory(served.child.pid!)
    for (const [name, [size, flow]] of Object.entries(sizes)) {
      for (const write of [true, false]) {
        const found = (rates[`${write ? 'upload' : 'download'} ${name}`] ??= { ours: [], bare: [] })
        const mine = await rate(ours, [size, flow], write)
        const theirs = await rate(other, [size, flow], write)
        if (round < 0) continue
        found.ours.push(mine)
        found.bare.push(theirs)
      }
    }
  }
  return { rates, before, after: await memory(served.child.pid!) }
}

await withProcesses(async (processes) => {
  const { rates, before, after } = await bench(processes)
  const rows = Object.entries(rates).map(([what, { ours, bare }]) => {
    const ratio = median(ours.map((mine, i) => mine / bare[i]!))
    return [what, shown(median(ours), 0), shown(median(bare), 0), `${shown(ratio, 2)}x`]
  })
  process.stdout.write(`${draw([[`${clients} clients`, 'MB/s', 'bare MB/s', 'ours to it'], ...rows])}\n`)
  const [now, later, most] = [before.now, after.now, after.peak].map((value) => shown(value, 0))
  process.stdout.write(`memory of the whole server, MiB: ${now} before, ${later} after, ${most} at most\n`)
  process.stdout.write(`${JSON.stringify({ node: process.version, rates, before, after })}\n`)
})
