import { setTimeout as sleep } from 'node:timers/promises'
import { type Measured, measureProcess } from '../inspector.ts'
import type { RunJob } from '../load-client.ts'
import { charactersPerStamp, complain } from '../measure.ts'
import { quantile } from '../statistics.ts'
import type { ModelName } from '../targets.ts'
import { type Cores, countCores } from './cpu.ts'
import type { Options } from './options.ts'
import type { LoadTarget, Watched } from './targets.ts'

/** Many streams open at once, one delta a second each. */
export interface StreamsSample {
  readonly streams: number
  /** Milliseconds from the first request until all were open. */
  readonly openedMs: number | undefined
  readonly lateP50: number
  readonly lateP99: number
  readonly openingLateP99: number
  readonly errors: number
  /** Growth per stream of each role, all its processes together, in KiB, both times after a full collection. */
  readonly memory: Readonly<Record<string, { readonly residentKb: number; readonly heapKb: number }>>
  /** CPU while all were open. */
  readonly cores: Cores
}

/** Seconds beyond opening and measuring lateness: for garbage collection, and for a machine that opens streams slower than asked. */
const spareSeconds = 15

/** Seconds, and so deltas, of each stream: the first must be open when the last one has been measured. */
const lengthOf = (streams: number, { openPerSecond, openMs }: Options): number =>
  Math.ceil(streams / openPerSecond + openMs / 1000) + spareSeconds

export const modelOf = (streams: number, options: Options): ModelName => `slow-${lengthOf(streams, options)}`

/** Each stream is a socket in and a socket out of a process, and a process has more open than that. */
export const filesNeeded = (streams: number): number => 2 * streams + 200

export async function measureStreams(
  run: RunJob,
  target: LoadTarget,
  streams: number,
  options: Options,
  others: readonly Watched[],
): Promise<StreamsSample> {
  const before = await measureAll(target)
  const opened = Promise.withResolvers<void>()
  const running = run(
    {
      ...target.chat(modelOf(streams, options), false),
      clients: streams,
      perSecond: options.openPerSecond,
      durationMs: (streams / options.openPerSecond) * 1000,
      expect: { characters: lengthOf(streams, options) * charactersPerStamp },
      timed: true,
      tellOpened: true,
      lateForMs: options.openMs,
    },
    opened.resolve,
  )
  await Promise.race([opened.promise, running])
  const count = countCores([...target.processes, ...others])
  await sleep(options.openMs)
  const cores = count()
  // Memory is measured after lateness, because collecting garbage stops a process.
  const open = await measureAll(target)
  const result = await running
  complain(target, `${streams} streams`, result)
  const neverOpen = result.openedMs === undefined && result.errors === 0
  if (neverOpen)
    process.stderr.write(`\n!! ${target.name}: the first of ${streams} streams ended before all were open\n`)
  const kbPerStream = (after: number, former: number): number => (after - former) / 1024 / streams
  const memory: Record<string, { residentKb: number; heapKb: number }> = {}
  for (const [name, now] of open) {
    const then = before.get(name) ?? now
    const sum = (memory[name.replace(/ \d+$/, '')] ??= { residentKb: 0, heapKb: 0 })
    sum.residentKb += kbPerStream(now.rss, then.rss)
    sum.heapKb += kbPerStream(now.heapUsed + now.external, then.heapUsed + then.external)
  }
  return {
    streams,
    openedMs: result.openedMs,
    lateP50: quantile(result.lateMs, 0.5),
    lateP99: quantile(result.lateMs, 0.99),
    openingLateP99: quantile(result.openingLateMs, 0.99),
    errors: result.errors + (neverOpen ? 1 : 0),
    memory: result.openedMs === undefined ? {} : memory,
    cores,
  }
}

async function measureAll({ processes }: LoadTarget): Promise<Map<string, Measured>> {
  const measured = new Map<string, Measured>()
  for (const { name, child } of processes) if (child.channel) measured.set(name, await measureProcess(child))
  return measured
}
