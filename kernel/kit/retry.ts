import { setTimeout as sleep } from 'node:timers/promises'
import { type JsonAnswer, NoAnswer } from './json.ts'

export interface Patience {
  /** The request may be made twice: a lost answer, or a failure of the server, is asked for again. */
  readonly repeatable: boolean
  /** No attempt begins later than this after the first. */
  readonly withinMs: number
  readonly signal?: AbortSignal | undefined
}

const firstWaitMs = 200
const longestWaitMs = 5_000
/** Failures that pass. 500 is among them: API servers answer it while they are being replaced. */
const passing = new Set([500, 502, 503, 504])

/**
 * Asks again what may succeed later: what was refused for its rate, what never arrived, and, where it does no harm, what
 * failed. The waits grow and are spread; `Retry-After` is heeded. Gives up with the last outcome.
 */
export async function askPatiently(ask: () => Promise<JsonAnswer>, patience: Patience): Promise<JsonAnswer> {
  const { repeatable, withinMs, signal } = patience
  const end = performance.now() + withinMs
  for (let attempt = 0; ; attempt++) {
    const outcome = await ask().catch((error: unknown) => {
      if (error instanceof NoAnswer) return error
      throw error
    })
    const backoff = Math.min(longestWaitMs, firstWaitMs * 2 ** attempt) * (0.5 + Math.random() / 2)
    const wait = Math.max(backoff, outcome instanceof NoAnswer ? 0 : retryAfterMs(outcome))
    if (!mayPass(outcome, repeatable) || performance.now() + wait > end) {
      if (outcome instanceof NoAnswer) throw outcome
      return outcome
    }
    await sleep(wait, undefined, signal ? { signal } : {})
  }
}

function mayPass(outcome: JsonAnswer | NoAnswer, repeatable: boolean): boolean {
  if (outcome instanceof NoAnswer) return repeatable || !outcome.asked
  return outcome.status === 429 || (repeatable && passing.has(outcome.status))
}

function retryAfterMs({ headers }: JsonAnswer): number {
  const value = headers['retry-after']
  return typeof value === 'string' && /^\d{1,6}$/.test(value) ? Number(value) * 1_000 : 0
}
