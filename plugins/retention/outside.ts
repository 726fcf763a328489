import { retentionErrors } from '#contracts/retention'

/** Milliseconds. */
export interface Patience {
  /** After so long, whoever is asked is told to end. */
  readonly askMs: number
  /** For so long its end is then waited for. A disk that hangs heeds no signal. */
  readonly endMs: number
}
const usual: Patience = { askMs: 4_000, endMs: 2_000 }

/**
 * Asks a store or a runner while a connection and the row of the tenant are held, which is for a few seconds at most, whatever the other side does:
 * nobody can read on that connection, and a legal hold waits. Rejects with 503 `store_silent` when there was no answer in time; what was asked begins
 * nothing more by then, if it heeds its signal.
 */
export async function inSeconds<T>(ask: (signal: AbortSignal) => Promise<T>, patience = usual): Promise<T> {
  const { askMs, endMs } = patience
  const asking = new AbortController()
  const { promise: given, reject: giveUp } = Promise.withResolvers<never>()
  const timers = [
    setTimeout(() => asking.abort(retentionErrors.storeSilent()), askMs),
    setTimeout(() => giveUp(retentionErrors.storeSilent()), askMs + endMs),
  ]
  try {
    return await Promise.race([ask(asking.signal), given])
  } catch (cause) {
    throw asking.signal.aborted ? retentionErrors.storeSilent({ cause }) : cause
  } finally {
    timers.forEach((timer) => clearTimeout(timer))
  }
}
