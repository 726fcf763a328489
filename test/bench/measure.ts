import { setTimeout as sleep } from 'node:timers/promises'
import type { JobResult } from './job.ts'
import type { RunJob } from './load-client.ts'
import { usageOf } from './processes.ts'
import { median, quantile } from './statistics.ts'
import type { Target } from './targets.ts'

/** Figures of one target in one cell. Times in ms; undefined where this system cannot tell. */
export interface Sample {
  readonly chatsPerSecond: number
  readonly firstP50: number
  readonly firstP99: number
  readonly totalP50: number
  readonly totalP99: number
  /** CPU of the target's Node processes, and of PostgreSQL's, per chat. */
  readonly cpuMs?: number
  readonly postgresCpuMs?: number
  readonly errors: number
}

/** A kind of load, measured on every target in every round. */
export interface Cell {
  readonly name: string
  readonly clients: number
  readonly model: 'burst-20' | 'tick-20'
  readonly sync?: boolean
  readonly continueConversation?: boolean
}

export const cells: readonly Cell[] = [
  { name: 'stream x1', clients: 1, model: 'burst-20' },
  { name: 'stream x16', clients: 16, model: 'burst-20' },
  { name: 'stream x64', clients: 64, model: 'burst-20' },
  { name: 'tick x16', clients: 16, model: 'tick-20' },
  { name: 'continued x16', clients: 16, model: 'burst-20', continueConversation: true },
  { name: 'sync x1', clients: 1, model: 'burst-20', sync: true },
]

/** Characters of the stand-in's 20 deltas, `word000 ` to `word019 `. */
const charactersPerDelta = 8
/** Characters of a delta of a slow stream: its send time in milliseconds since the epoch with one decimal, and a space. */
export const charactersPerStamp = 16
export const longDeltas = 20_000

export async function measureCell(
  run: RunJob,
  target: Target<string>,
  cell: Cell,
  warmMs: number,
  ms: number,
): Promise<Sample> {
  const job = {
    ...target.chat(cell.model, cell.sync ?? false),
    clients: cell.clients,
    expect: { characters: 20 * charactersPerDelta },
    ...(cell.continueConversation ? { continueConversation: true } : {}),
  }
  const warm = await run({ ...job, durationMs: warmMs })
  const before = usageOf(target.roots(), target.postgresRoots?.())
  const result = await run({ ...job, durationMs: ms })
  const after = usageOf(target.roots(), target.postgresRoots?.())
  complain(target, cell.name, warm)
  complain(target, cell.name, result)
  return {
    chatsPerSecond: (result.chats / result.ms) * 1000,
    firstP50: quantile(result.firstMs, 0.5),
    firstP99: quantile(result.firstMs, 0.99),
    totalP50: quantile(result.totalMs, 0.5),
    totalP99: quantile(result.totalMs, 0.99),
    errors: warm.errors + result.errors,
    ...(before && after && result.chats > 0
      ? {
          cpuMs: (after.nodeCpuMs - before.nodeCpuMs) / result.chats,
          postgresCpuMs: (after.postgresCpuMs - before.postgresCpuMs) / result.chats,
        }
      : {}),
  }
}

/** Deltas per second of one stream of 20,000, from request to end; median of `times`. */
export async function measureLong(
  run: RunJob,
  target: Target<string>,
  times: number,
): Promise<{ perSecond: number; errors: number }> {
  const rates: number[] = []
  let errors = 0
  for (let i = 0; i < times; i++) {
    const result = await run({
      ...target.chat('burst-20000', false),
      clients: 1,
      expect: { characters: longDeltas * charactersPerDelta },
    })
    complain(target, 'long stream', result)
    errors += result.errors
    if (result.totalMs[0] !== undefined) rates.push((longDeltas / result.totalMs[0]) * 1000)
  }
  return { perSecond: median(rates), errors }
}

export interface SlowStreams {
  readonly streams: number
  /** Growth of the Node processes' resident sets per open stream. */
  readonly kbPerStream?: number
  /** From the stand-in's write to the client's read. */
  readonly lateP50: number
  readonly lateP99: number
  /** Lateness of the deltas that came while the streams were being opened, all at once. */
  readonly openingLateP99: number
  readonly errors: number
}

/** Memory of streams that stay open, one delta per second each: growth from before the first to half of their length after all run. */
export async function measureSlow(
  run: RunJob,
  target: Target<string>,
  streams: number,
  deltas: number,
): Promise<SlowStreams> {
  const before = usageOf(target.roots(), target.postgresRoots?.())
  const opened = Promise.withResolvers<void>()
  const running = run(
    {
      ...target.chat('slow', false),
      clients: streams,
      expect: { characters: deltas * charactersPerStamp },
      timed: true,
      tellOpened: true,
    },
    opened.resolve,
  )
  await Promise.race([opened.promise, running])
  await sleep((deltas * 1000) / 2)
  const open = usageOf(target.roots(), target.postgresRoots?.())
  const result = await running
  complain(target, 'slow streams', result)
  return {
    streams,
    lateP50: quantile(result.lateMs, 0.5),
    lateP99: quantile(result.lateMs, 0.99),
    openingLateP99: quantile(result.openingLateMs, 0.99),
    errors: result.errors,
    ...(before && open ? { kbPerStream: ((open.nodeRssMb - before.nodeRssMb) * 1024) / streams } : {}),
  }
}

const builtinChats = 20

/** Time to the first delta of chats with the builtin provider, one at a time; undefined for targets without one. */
export async function measureBuiltin(
  run: RunJob,
  target: Target<string>,
): Promise<{ cold: number; warm: number; errors: number } | undefined> {
  if (!target.builtin) return undefined
  const first: number[] = []
  let errors = 0
  for (let i = 0; i < builtinChats; i++) {
    const result = await run({ ...target.builtin, clients: 1, expect: {} })
    complain(target, 'builtin chat', result)
    errors += result.errors
    first.push(...result.firstMs)
  }
  return { cold: first[0] ?? Number.NaN, warm: median(first.slice(1)), errors }
}

export function complain(target: Pick<Target<string>, 'name'>, what: string, result: JobResult): void {
  if (result.errors === 0) return
  process.stderr.write(
    `\n!! ${target.name}, ${what}: ${result.errors} of ${result.chats + result.errors} chats FAILED\n`,
  )
  for (const message of result.errorMessages) process.stderr.write(`!!   ${message}\n`)
}
