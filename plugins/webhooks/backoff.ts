import type { Answer } from './send.ts'
import type { Settled, Taken } from './store.ts'

const minute = 60_000
const hour = 60 * minute
/** Waits between attempts, as Standard Webhooks suggests them: a receiver that is away for a day loses nothing. */
export const schedule = [5_000, 5 * minute, 30 * minute, 2 * hour, 5 * hour, 10 * hour, 10 * hour] as const
/** The longest pause that a receiver may ask for. */
const maxPauseMs = 12 * hour

/** What becomes of a message after an attempt. `random` in [0, 1) spreads those that failed together. */
export function outcomeOf(answer: Answer, { attempt }: Taken, random: number): Settled {
  const { status, error } = answer
  if (answer.taken) return { state: 'delivered', status, error }
  const wait = schedule[attempt - 1]
  if (answer.gone || wait === undefined) return { state: 'dead', status, error }
  const spread = wait * (1 + random * 0.1)
  return { state: 'pending', status, error, inMs: Math.min(Math.max(spread, answer.retryAfterMs ?? 0), maxPauseMs) }
}
