// `npm run bench:storage`: how many MB/s of objects are uploaded and downloaded, held to a bare Fastify file server that streams to
// and from files of the same disk, in alternation in the same run; and what memory they take. See docs/performance.md.
import { randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { mkdir, open, readdir, readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { request } from 'undici'
import { trailerOf } from '../../providers/storage-disk/backend.ts'
import { namesOf } from '../../providers/storage-disk/names.ts'
import { command, dataDirectory } from './cluster.ts'
import { say, withProcesses } from './command.ts'
import type { Processes } from './processes.ts'
import { environment, liftTransferLimit, operating } from './service.ts'
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

/** Objects of the lists: in one folder, and in a hundred of a thousand each. */
const listed = 100_000
const perFolder = 1_000
const lists = { 'one folder': () => 'flat', 'folders of 1,000': (n: number) => `deep/${Math.floor(n / perFolder)}` }

/** Puts objects where the server keeps them, as it does but for waiting for the disk a hundred thousand times. */
async function fill(dir: string): Promise<void> {
  const known = { contentType: 'text/plain', sha256: '0'.repeat(64), updatedAt: new Date().toISOString() }
  for (const folderOf of Object.values(lists)) {
    for (let n = 0; n < listed; n++) {
      const key = `${folderOf(n)}/${String(n).padStart(6, '0')}.txt`
      const path = join(dir, ...namesOf(`default/${key}`))
      if (n % perFolder === 0) await mkdir(dirname(path), { recursive: true })
      writeFileSync(path, Buffer.concat([Buffer.from('x'), trailerOf({ key, ...known })]))
    }
  }
}

/** Milliseconds of one page in the middle, and of all pages of 1,000; beside what reading the names and opening each file takes. */
async function listing({ base, headers }: Server, dir: string, prefix: string) {
  const page = async (cursor: string | undefined, limit: number) => {
    const query = new URLSearchParams({ prefix, limit: String(limit), ...(cursor === undefined ? {} : { cursor }) })
    const reply = await request(`${base}?${query}`, { headers })
    return (await reply.body.json()) as { objects: unknown[]; cursor?: string }
  }
  let began = performance.now()
  let found = 0
  let middle: string | undefined
  for (let cursor: string | undefined; ;) {
    const { objects, cursor: next } = await page(cursor, 1_000)
    found += objects.length
    if (found === listed / 2) middle = next
    if (next === undefined) break
    cursor = next
  }
  const allMs = performance.now() - began
  if (found !== listed) throw new Error(`${found} objects are listed, of ${listed}`)
  began = performance.now()
  await page(middle, 100)
  const pageMs = performance.now() - began
  began = performance.now()
  for (const entry of await readdir(join(dir, ...namesOf(`default/${prefix}`).slice(0, -1)), {
    recursive: true,
    withFileTypes: true,
  }))
    if (entry.isFile()) await (await open(join(entry.parentPath, entry.name))).close()
  return { pageMs, allMs, bareMs: performance.now() - began }
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
  const served = await processes.node([...command('dev'), '--json', '--port', '0', '--data', data], {
    ...environment('http://127.0.0.1:9'),
    ...operating,
  })
  const { conductorUrl, apiKey } = served.line as Record<string, string>
  await liftTransferLimit(conductorUrl!, apiKey!)
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
  const after = await memory(served.child.pid!)
  say('writing a list of 100,000 objects, twice')
  const objects = join(data, 'objects')
  await fill(objects)
  say('listing them')
  const times: Record<string, Awaited<ReturnType<typeof listing>>> = {}
  for (const [name, folderOf] of Object.entries(lists))
    times[name] = await listing(ours, objects, `${folderOf(0).split('/')[0]!}/`)
  return { rates, before, after, times }
}

await withProcesses(async (processes) => {
  const { rates, before, after, times } = await bench(processes)
  const rows = Object.entries(rates).map(([what, { ours, bare }]) => {
    const ratio = median(ours.map((mine, i) => mine / bare[i]!))
    return [what, shown(median(ours), 0), shown(median(bare), 0), `${shown(ratio, 2)}x`]
  })
  process.stdout.write(`${draw([[`${clients} clients`, 'MB/s', 'bare MB/s', 'ours to it'], ...rows])}\n`)
  const listRows = Object.entries(times).map(([name, { pageMs, allMs, bareMs }]) => [
    `100,000 objects in ${name}`,
    shown(pageMs, 0),
    shown(allMs, 0),
    shown(bareMs, 0),
    `${shown(allMs / bareMs, 2)}x`,
  ])
  const heads = ['list', '100 in the middle, ms', 'all, by 1,000, ms', 'names read and files opened, ms', 'ours to it']
  process.stdout.write(`${draw([heads, ...listRows])}\n`)
  const [now, later, most] = [before.now, after.now, after.peak].map((value) => shown(value, 0))
  process.stdout.write(`memory of the whole server, MiB: ${now} before, ${later} after, ${most} at most\n`)
  process.stdout.write(`${JSON.stringify({ node: process.version, rates, before, after, times })}\n`)
})
