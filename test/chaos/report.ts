import type { Observation } from './observed.ts'
import type { Options } from './options.ts'
import type { Orphan } from './orphans.ts'
import type { Scheduled } from './schedule.ts'
import type { Stored } from './stored.ts'
import type { Proof } from './workflows/proof.ts'

/** The aims of a chaos run. */
const aims = { okShare: 0.9, healMs: 15_000, orphanP99Ms: 15_000 }
const shownProblems = 40

export interface Findings {
  readonly options: Options
  readonly stored: Stored
  readonly observed: readonly Observation[]
  readonly problems: readonly string[]
  readonly orphans: readonly Orphan[]
  /** Undefined when not everything became ready again. */
  readonly healMs: number | undefined
  readonly faults: readonly Scheduled[]
  readonly begun: number
  readonly refused: number
  readonly workflows: Proof
}

export interface Verdict {
  readonly passed: boolean
  readonly seed: number
  readonly minutes: number
  readonly faults: Readonly<Record<string, number>>
  readonly runs: Readonly<Record<string, number>>
  readonly publicRuns: Readonly<Record<string, number>>
  /** Share of the chats and direct runs that ended well, of those that no client cancelled. */
  readonly okShare: number
  readonly events: number
  /** Runs that clients saw accepted, and connections on which they read them. */
  readonly followed: number
  readonly connections: number
  readonly orphans: number
  readonly orphanP50Ms: number
  readonly orphanP99Ms: number
  readonly healMs: number | undefined
  /** Calls that waited for people. */
  readonly approvals: number
  readonly begun: number
  readonly refused: number
  /** Of workflows and schedules, as they are shown. */
  readonly workflows: Readonly<Record<string, string>>
  readonly problems: readonly string[]
}

export function judge(findings: Findings): Verdict {
  const { options, stored, observed, faults, begun, refused } = findings
  const orphanMs = findings.orphans.map(({ ms }) => ms)
  // Requests are chats, and runs that do not belong to a chat.
  const ofChats = new Set(stored.publicRuns.map(({ runId }) => runId))
  const asked = [...stored.publicRuns, ...stored.runs.filter(({ id }) => !ofChats.has(id))]
  const wanted = asked.filter(
    (one) => one.status !== 'cancelled' && !('errorCode' in one && one.errorCode === 'cancelled'),
  )
  const ok = wanted.filter(({ status }) => status === 'ok').length
  const okShare = wanted.length === 0 ? 0 : ok / wanted.length
  const orphanP99Ms = Math.round(quantile(orphanMs, 0.99))
  const healMs = findings.healMs === undefined ? undefined : Math.round(findings.healMs)
  const problems = [...findings.problems, ...findings.workflows.problems]
  if (okShare <= aims.okShare) problems.push(`only ${percent(okShare)} of the chats and runs ended well`)
  if (healMs === undefined || healMs > aims.healMs)
    problems.push(`not whole again ${aims.healMs} ms after the last fault`)
  if (orphanP99Ms > aims.orphanP99Ms)
    problems.push(`p99 of the time until an orphan was over is ${orphanP99Ms} ms: ${slowest(findings.orphans)}`)
  return {
    passed: problems.length === 0,
    seed: options.seed,
    minutes: options.minutes,
    faults: countBy(faults, (fault) => ('store' in fault ? `${fault.kind} ${fault.store}` : fault.kind)),
    runs: countBy(stored.runs, ({ status }) => status),
    publicRuns: countBy(stored.publicRuns, ({ status, errorCode }) =>
      errorCode === undefined ? status : `${status} ${errorCode}`,
    ),
    okShare: Math.round(okShare * 10_000) / 10_000,
    events: stored.runs.reduce((sum, run) => sum + run.events.length, 0),
    followed: observed.length,
    connections: observed.reduce((sum, { readings }) => sum + readings.length, 0),
    orphans: orphanMs.length,
    orphanP50Ms: Math.round(quantile(orphanMs, 0.5)),
    orphanP99Ms,
    healMs,
    begun,
    refused,
    approvals: stored.approvals.length,
    workflows: findings.workflows.figures,
    problems,
  }
}

export function table(verdict: Verdict): string {
  const list = (counts: Readonly<Record<string, number>>): string =>
    Object.entries(counts)
      .map(([name, count]) => `${count} ${name}`)
      .join(', ')
  const rows: [string, string][] = [
    ['seed, minutes', `${verdict.seed}, ${verdict.minutes}`],
    ['faults', list(verdict.faults)],
    ['begun by clients, of them never accepted', `${verdict.begun}, ${verdict.refused}`],
    ['runs', list(verdict.runs)],
    ['public runs', list(verdict.publicRuns)],
    ['ended well, of those not cancelled', `${percent(verdict.okShare)} (aim: above ${percent(aims.okShare)})`],
    ['events on record', String(verdict.events)],
    ['followed by clients, over connections', `${verdict.followed}, ${verdict.connections}`],
    [
      'orphans; p50 and p99 until they were over',
      `${verdict.orphans}; ${verdict.orphanP50Ms} and ${verdict.orphanP99Ms} ms`,
    ],
    ['calls that waited for people', String(verdict.approvals)],
    ['whole again after the last fault', verdict.healMs === undefined ? 'never' : `${verdict.healMs} ms`],
    ...Object.entries(verdict.workflows),
    ['broken promises', String(verdict.problems.length)],
  ]
  return layOut(rows, verdict.problems)
}

/** Names and values in two columns, and the first problems below them. */
export function layOut(rows: readonly (readonly [string, string])[], problems: readonly string[]): string {
  const width = Math.max(...rows.map(([name]) => name.length))
  const more = problems.length - shownProblems
  return [
    ...rows.map(([name, value]) => `${name.padEnd(width)}  ${value}`),
    ...problems.slice(0, shownProblems).map((problem) => `  - ${problem}`),
    ...(more > 0 ? [`  … and ${more} more`] : []),
  ].join('\n')
}

const slowest = (orphans: readonly Orphan[]): string =>
  orphans
    .toSorted((a, b) => b.ms - a.ms)
    .slice(0, 3)
    .map(({ id, ms }) => `${id} ${ms} ms`)
    .join(', ')

const percent = (share: number): string => `${(share * 100).toFixed(1)} %`

function countBy<T>(items: readonly T[], nameOf: (item: T) => string): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const item of items) counts[nameOf(item)] = (counts[nameOf(item)] ?? 0) + 1
  return counts
}

/** A quantile; 0 for an empty list. */
function quantile(values: readonly number[], q: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? 0
}
