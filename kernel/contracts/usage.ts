import { microcentsPerCent, type Prices } from './prices.ts'
import type { Usage } from './run-event.ts'

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
