import type { Static } from '@sinclair/typebox'
import { microcentsPerCent, type Prices } from './prices.ts'
import { parseLine, peekType, type ProgressEvent, type Usage } from './run-event.ts'

// What a run used, read from its events as they stream or as they were stored: its model calls, and its sandbox.

/** Sums the `usage` events of one run: as it streams, or from its stored log when somebody else ends it. */
export interface UsageTally {
  /** All model calls together, under the last one's model; `costCents` only when every call has a cost. Undefined: none was reported. */
  readonly usage: Usage | undefined
  add(event: Readonly<Record<string, unknown>>): void
}

/** What a single call may report. No call comes near it. */
const mostTokens = 1e12
const mostCents = 1e9
/** What a run may add up to, of however many calls: sums stay exact, and the meters within what PostgreSQL counts. */
const mostTokensOfRun = 1e15
const mostMicrocentsOfRun = mostCents * microcentsPerCent

/** Runtimes of others report what they like, and a count that cannot be stored would keep its run from ending. */
const tokens = (value: unknown): number =>
  typeof value === 'number' && value > 0 ? Math.min(Math.round(value), mostTokens) : 0
const cents = (value: unknown): number | undefined =>
  typeof value === 'number' && value >= 0 ? Math.min(value, mostCents) : undefined
const sum = (before = 0, call = 0): number => Math.min(before + call, mostTokensOfRun)

/** Calls are priced one by one, so that a run of two models costs what both cost. A runtime that reports a cost is believed. */
export function createUsageTally(prices: Prices | undefined): UsageTally {
  let usage: Usage | undefined
  // In whole millionths: a thousand small costs add up without drift.
  let microcents: number | undefined = 0
  return {
    get usage() {
      return usage
    },
    add(event) {
      const call: Usage = {
        inputTokens: tokens(event['inputTokens']),
        outputTokens: tokens(event['outputTokens']),
        cachedTokens: tokens(event['cachedTokens']),
        model: typeof event['model'] === 'string' ? event['model'] : (usage?.model ?? ''),
      }
      const cost = cents(event['costCents']) ?? prices?.costCents(call)
      if (cost === undefined) microcents = undefined
      else if (microcents !== undefined) {
        microcents = Math.min(microcents + Math.round(cost * microcentsPerCent), mostMicrocentsOfRun)
      }
      const cachedTokens = sum(usage?.cachedTokens, call.cachedTokens)
      usage = {
        inputTokens: sum(usage?.inputTokens, call.inputTokens),
        outputTokens: sum(usage?.outputTokens, call.outputTokens),
        ...(cachedTokens > 0 ? { cachedTokens } : {}),
        model: call.model,
        ...(microcents === undefined ? {} : { costCents: microcents / microcentsPerCent }),
      }
    },
  }
}

/** The event that tells a run's readers about its sandbox. The runner writes it, right behind its `runner_accepted`. */
export type SandboxEvent = Static<typeof ProgressEvent> & {
  readonly stage: 'sandbox'
  readonly provider: string
  /** `running`: it was there. */
  readonly start: 'launched' | 'warm' | 'resumed' | 'running'
  /** How long the start took. */
  readonly startMs: number
  /** How long it was awake without a run since the former one. */
  readonly idleSeconds: number
}

/** What a run used of its sandbox. */
export interface SandboxUse {
  /** Awake before the run and not accounted for. */
  readonly idleSeconds: number
  /** Of the run; all the time until its end unless given. */
  readonly runSeconds?: number
}

/** An idle sandbox is paused long before; it keeps the meter within what can be. */
const mostIdleSeconds = 7 * 24 * 3_600

/** Looks for the event among the lines of a run, as they stream or as they were stored. */
export interface SandboxUseReader {
  /** Undefined: the run has had no sandbox so far. */
  readonly use: SandboxUse | undefined
  /** Lines that are neither progress nor the ones behind it may be left out. */
  read(line: Buffer, seq: number): void
  /** No line from `seq` on says anything more. */
  isPast(seq: number): boolean
}

/**
 * A worker writes events too, and would be believed: so only the line behind the first `runner_accepted` counts, which no
 * worker can write.
 */
export function createSandboxUseReader(): SandboxUseReader {
  let acceptedAt = Infinity
  let decided = false
  let use: SandboxUse | undefined
  return {
    get use() {
      return use
    },
    isPast: (seq) => decided || seq > acceptedAt + 1,
    read(line, seq) {
      if (decided) return
      decided = seq > acceptedAt
      if (seq > acceptedAt + 1 || peekType(line) !== 'progress') return
      const { stage, idleSeconds } = parseLine(line) ?? {}
      if (stage === 'runner_accepted' && !decided) acceptedAt = seq
      if (stage === 'sandbox' && decided) use = { idleSeconds: secondsOf(idleSeconds) }
    },
  }
}

const secondsOf = (value: unknown): number =>
  typeof value === 'number' && value > 0 ? Math.min(Math.round(value), mostIdleSeconds) : 0
