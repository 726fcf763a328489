import type { JobResult } from '../bench/job.ts'
import { quantile } from '../bench/statistics.ts'
import { draw, shown } from '../bench/table.ts'
import type { Verdict } from './attack.ts'

/** p99 during an attack over p99 alone. */
const bar = 2
/** No process may be deaf to everybody for longer. */
const mostDeafMs = 500

/** Chats of the victim, and what the fleet had of the processors meanwhile, in a second. */
export type Measured = JobResult & {
  /** What all its processes took together. */
  readonly cpuMs: number
  /** How long that process was ready and had none which had to wait most. */
  readonly queuedMs: number
  /** The slowest flush of its disk. */
  readonly flushMs: number
}

/** What the victim saw, and what kept the processes busy meanwhile. */
export interface Seen {
  readonly name: string
  /** Just before the attack and just after it, because machines change from one minute to the next. */
  readonly alone: readonly [Measured, Measured]
  readonly result: Measured
  /** What the client of the attacker took of the processors, in a second. */
  readonly attackerMs: number
  readonly deafMs: number
  /** The longest step of any process was at least so long, and what it may have been on this machine. */
  readonly stepMs: number
  readonly stepBy: string
  readonly mostStepMs: number
  readonly verdicts: readonly Verdict[]
  readonly lost: number
  readonly answers: Readonly<Record<string, number>>
  /** Part of them that succeeded. */
  readonly succeeded: number
}

/** Prints it all, and returns whether every bar is met. */
export function report(seen: readonly Seen[], plan: string): boolean {
  const p99 = (...results: readonly JobResult[]): number =>
    quantile(
      results.flatMap(({ totalMs }) => totalMs),
      0.99,
    )
  const rows = seen.map(({ name, alone, result, attackerMs, deafMs, stepMs, stepBy, lost, answers, succeeded }) => [
    name,
    alone.map((one) => shown(p99(one), 1)).join(', '),
    shown(p99(result), 1),
    `${shown(p99(result) / p99(...alone), 2)}x`,
    [...alone, result].map(({ cpuMs }) => shown(cpuMs, 0)).join(', '),
    shown(attackerMs, 0),
    [...alone, result].map((one) => shown(one.queuedMs, 0)).join(', '),
    [...alone, result].map((one) => shown(one.flushMs, 0)).join(', '),
    shown(deafMs, 0),
    `${shown(stepMs, 0)} ${stepBy}`,
    String(result.errors),
    String(lost),
    `${shown(100 * succeeded, 0)} %`,
    Object.entries(answers)
      .map(([status, count]) => `${status}: ${count}`)
      .join(', '),
  ])
  const head = [
    'attack',
    'p99 before, after',
    'p99 then',
    'ratio',
    'CPU ms a second of the fleet: before, after, then',
    'of the attacker',
    'ms a second without a processor: before, after, then',
    'slowest flush of the disk, ms: before, after, then',
    'deaf ms, at most',
    'step ms, at least',
    'failed chats',
    'lost runs',
    'succeeded',
    'its answers',
  ]
  process.stdout.write(`\n${draw([head, ...rows])}\n\nA hostile tenant has ${plan}.\n\n`)
  let met = true
  const judge = (text: string, ok: boolean): void => {
    met &&= ok
    process.stdout.write(`${ok ? 'met    ' : 'NOT MET'} ${text}\n`)
  }
  for (const { name, alone, result, attackerMs, deafMs, stepMs, mostStepMs, verdicts, lost } of seen) {
    const queued = `${shown(result.queuedMs, 0)} ms a second ready and without a processor`
    process.stdout.write(
      `        ${name}: fleet ${shown(result.cpuMs, 0)}, attacker ${shown(attackerMs, 0)} ms of CPU a second; a process was ${queued}\n`,
    )
    judge(`${name}: p99 at most ${bar} times that alone`, p99(result) <= bar * p99(...alone))
    judge(`${name}: nothing failed or lost`, [...alone, result].every(({ errors }) => errors === 0) && lost === 0)
    judge(`${name}: no process deaf for ${mostDeafMs} ms`, deafMs <= mostDeafMs)
    judge(`${name}: no step of ${mostStepMs.toFixed(0)} ms of the processor`, stepMs < mostStepMs)
    for (const { text, ok } of verdicts) judge(`${name}: ${text}`, ok)
  }
  return met
}
