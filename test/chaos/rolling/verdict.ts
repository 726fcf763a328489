import { check } from '../checker.ts'
import { layOut } from '../report.ts'
import type { Stored } from '../stored.ts'
import type { Told } from './chats.ts'
import { turnOf } from './model.ts'

/** One stop and start of a process. */
export interface Restart {
  readonly name: string
  /** From SIGTERM until it was gone, and from its start until it was ready. */
  readonly goneMs: number
  readonly readyMs: number
}

export interface Findings {
  readonly told: readonly Told[]
  readonly begun: number
  readonly stored: Stored
  readonly restarts: readonly Restart[]
  /** Sentences about processes that did not stop or start. */
  readonly problems: readonly string[]
}

export interface Verdict {
  readonly passed: boolean
  readonly begun: number
  readonly streamed: number
  readonly continued: number
  /** How many chats have not their whole, right answer. */
  readonly failed: number
  readonly why: Readonly<Record<string, number>>
  /** How many deltas a client got twice, and how many stored ones it was not shown. */
  readonly doubled: number
  readonly missing: number
  /** How many answers come from a model that was not shown the turns before. */
  readonly forgotten: number
  /** Streams that ended with `: closing` and that just broke; each was resumed. */
  readonly closed: number
  readonly broken: number
  readonly repeated: number
  /** Until a stream was accepted, or a whole answer was there after the time that it takes. */
  readonly waitP99Ms: number
  readonly waitWorstMs: number
  /** Time without an event in a stream, from its first one on. */
  readonly gapP99Ms: number
  readonly gapWorstMs: number
  readonly restarts: number
  readonly goneWorstMs: number
  readonly readyWorstMs: number
  readonly problems: readonly string[]
}

export function judge({ told, begun, stored, restarts, problems }: Findings): Verdict {
  const failures = told.flatMap((one) => failureOf(one, stored))
  const observed = told.flatMap(({ observation }) => (observation ? [observation] : []))
  const deltas = told.map((one) => deltasOf(one, stored))
  const forgotten = told.filter(isForgotten)
  const gaps = told.filter(({ question }) => question.streamed).map(({ longestGapMs }) => longestGapMs)
  const waits = told.map(({ waitedMs }) => waitedMs)
  const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0)
  const worst = (values: readonly number[]): number => Math.round(Math.max(0, ...values))
  const doubled = sum(deltas.map((one) => one.doubled))
  const missing = sum(deltas.map((one) => one.missing))
  const all = [
    ...problems,
    ...(told.length < begun ? [`${begun - told.length} chats never came to an end`] : []),
    ...failures.map(({ chat, why }) => `chat ${chat}: ${why}`),
    ...forgotten.map(
      ({ observation, turnsBefore }) => `chat ${observation?.id}: answered without its ${turnsBefore} turns`,
    ),
    // A failed chat is reported once; the record must be right all the same.
    ...check(stored, observed),
  ]
  return {
    passed: all.length === 0 && doubled === 0 && missing === 0 && told.length > 0,
    begun,
    streamed: gaps.length,
    continued: told.filter(({ question }) => question.conversation !== undefined).length,
    failed: failures.length + begun - told.length,
    why: Object.fromEntries([...Map.groupBy(failures, ({ why }) => why)].map(([why, { length }]) => [why, length])),
    doubled,
    missing,
    forgotten: forgotten.length,
    closed: sum(told.map((one) => one.closed)),
    broken: sum(told.map((one) => one.broken)),
    repeated: sum(told.map((one) => one.repeated)),
    waitP99Ms: Math.round(quantile(waits, 0.99)),
    waitWorstMs: worst(waits),
    gapP99Ms: Math.round(quantile(gaps, 0.99)),
    gapWorstMs: worst(gaps),
    restarts: restarts.length,
    goneWorstMs: worst(restarts.map(({ goneMs }) => goneMs)),
    readyWorstMs: worst(restarts.map(({ readyMs }) => readyMs)),
    problems: all,
  }
}

const publicRunOf = ({ observation }: Told, { publicRuns }: Stored) =>
  publicRuns.find(({ id }) => id === observation?.id)

interface Failure {
  readonly chat: string
  readonly why: string
}

/** Says why a chat failed; empty when it has its whole answer. */
function failureOf(one: Told, stored: Stored): Failure[] {
  const { question, observation, gaveUp, answer } = one
  const chat = observation?.id ?? `#${question.tag}`
  const failed = (why: string): Failure[] => [{ chat, why: `${question.streamed ? 'streamed' : 'whole'}, ${why}` }]
  if (gaveUp !== undefined) return failed(gaveUp)
  if (answer === undefined) {
    const known = publicRunOf(one, stored)
    return failed(`ended as ${known?.status ?? 'unknown'} ${known?.errorCode ?? ''}`.trimEnd())
  }
  if (turnOf(answer, question.words, question.tag) === undefined) return failed('another answer than the right one')
  const shown = observation?.readings.flat().filter(({ type }) => type === 'delta') ?? []
  if (question.streamed && !isTold(one) && shown.map(({ text }) => text).join('') !== answer) {
    return failed('its deltas are not its answer')
  }
  return []
}

/** A chat that is over by the time its client comes back is told in one event, which holds the whole answer. */
const isTold = ({ observation }: Told): boolean =>
  (observation?.readings.length ?? 0) > 1 && observation?.readings.at(-1)?.length === 1

function deltasOf(one: Told, stored: Stored): { doubled: number; missing: number } {
  const seen = one.observation?.readings.flat().filter(({ type }) => type === 'delta') ?? []
  let last = 0
  let doubled = 0
  const got = new Set<number>()
  for (const { seq } of seen) {
    if (seq <= last) doubled++
    last = Math.max(last, seq)
    got.add(seq)
  }
  const runId = publicRunOf(one, stored)?.runId
  const events = stored.runs.find(({ id }) => id === runId)?.events ?? []
  // Without its end a reader may lack the rest, and one that was told the answer in one event lacks nothing.
  const until = one.answer === undefined || isTold(one) ? last : Number.POSITIVE_INFINITY
  const missing = !one.question.streamed
    ? 0
    : events.filter(({ type, seq }) => type === 'assistant' && seq <= until && !got.has(seq)).length
  return { doubled, missing }
}

const isForgotten = ({ question, answer, turnsBefore }: Told): boolean => {
  const turn = turnOf(answer ?? '', question.words, question.tag)
  return turn !== undefined && turn <= turnsBefore
}

function quantile(values: readonly number[], q: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? 0
}

export function table(verdict: Verdict): string {
  const rows: [string, string][] = [
    ['chats; streamed, of a conversation that went on', `${verdict.begun}; ${verdict.streamed}, ${verdict.continued}`],
    [
      'restarts; the slowest to go, to be ready',
      `${verdict.restarts}; ${verdict.goneWorstMs} and ${verdict.readyWorstMs} ms`,
    ],
    ['streams resumed after `: closing`, after a break', `${verdict.closed}, ${verdict.broken}`],
    ['requests sent again', String(verdict.repeated)],
    ['time until accepted or answered, p99 and worst', `${verdict.waitP99Ms} and ${verdict.waitWorstMs} ms`],
    ['longest time without an event, p99 and worst', `${verdict.gapP99Ms} and ${verdict.gapWorstMs} ms`],
    ['chats that failed (aim: 0)', String(verdict.failed)],
    ...Object.entries(verdict.why).map(([why, count]): [string, string] => ['', `${count} ${why}`]),
    ['deltas that came twice (aim: 0)', String(verdict.doubled)],
    ['deltas that never came (aim: 0)', String(verdict.missing)],
    ['answers without the turns before (aim: 0)', String(verdict.forgotten)],
    ['problems', String(verdict.problems.length)],
  ]
  return layOut(rows, verdict.problems)
}
