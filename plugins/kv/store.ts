import { type AppError, unavailable } from '#kernel'
import type { Hit, Kv } from '#contracts/kv'
import { HitWindows, mostKeys, tooManyKeys } from '#kit'

/** What each store can do by itself; see `Kv` for the promises. */
export interface Store {
  readonly claim: Kv['claim']
  hit(key: string, limit: number, windowSeconds: number): Promise<Hit>
}

export type Subscriber = (message: string) => void

/** Who listens to which channel in this process. */
export interface Channels {
  /** Returns the function that unsubscribes; it returns true when no listener is left. */
  add(channel: string, listener: Subscriber): () => boolean
  has(channel: string): boolean
  names(): string[]
  readonly size: number
  deliver(channel: string, message: string): void
}

const again = (message: string, cause?: unknown): AppError => unavailable({ message, retryable: true, cause })
export const storeAway = (cause: unknown) =>
  again('The shared state of this service does not answer; try again shortly.', cause)
export const storeForgot = () => again('This was made before the memory of this service began; make it anew.')

const sweepEveryMs = 10_000

export interface MemoryOptions {
  /** Milliseconds on a clock that never goes back; tests give their own. */
  readonly now?: () => number
  readonly limit?: number
}

/** The keys that are gone in the same second: one timer for all keys, and few things to look through. */
interface Leaving {
  readonly keys: string[]
  /** When the last of them was made. */
  newest: number
}
const secondOf = (at: number): number => Math.ceil(at / 1_000)

/** The dates in signed requests are whole seconds. */
const thisSecond = (): number => Math.floor(Date.now() / 1_000) * 1_000

/** A store in the memory of one process. It keeps the same promises as the others, but no other process sees it. */
export function createMemoryStore({ now = () => performance.now(), limit = mostKeys }: MemoryOptions = {}) {
  const claims = new Map<string, number>()
  const leaving = new Map<number, Leaving>()
  let begun = thisSecond()

  const forget = (second: number): void => {
    // A key that was claimed again since leaves later.
    for (const key of leaving.get(second)!.keys) if (secondOf(claims.get(key) ?? 0) === second) claims.delete(key)
    leaving.delete(second)
  }
  const sweep = (): void => {
    for (const second of leaving.keys()) if (second * 1_000 <= now()) forget(second)
  }
  /**
   * Forgets of a full store what leaves first, and refuses from now on whatever was made as early, so that nothing is accepted twice. Otherwise
   * whoever has many requests signed would have those of everybody refused.
   */
  const makeRoom = (): void => {
    sweep()
    while (claims.size >= limit) {
      let first = Infinity
      for (const second of leaving.keys()) first = Math.min(first, second)
      const { newest } = leaving.get(first)!
      // What is made now must be accepted.
      if (newest >= thisSecond()) return
      begun = Math.max(begun, newest + 1)
      forget(first)
    }
  }
  const timer = setInterval(sweep, sweepEveryMs).unref()

  const store: Store = {
    // A key without a date is never forgotten before its time.
    async claim(key, ttlMs, madeAt = Infinity) {
      const goneAt = claims.get(key)
      if (goneAt !== undefined && goneAt > now()) return false
      if (goneAt === undefined && madeAt >= begun && claims.size >= limit) makeRoom()
      if (madeAt < begun) throw storeForgot()
      if (!claims.has(key) && claims.size >= limit) throw tooManyKeys()
      const until = now() + ttlMs
      claims.set(key, until)
      const second = secondOf(until)
      const others = leaving.get(second) ?? { keys: [], newest: -Infinity }
      leaving.set(second, others)
      others.keys.push(key)
      others.newest = Math.max(others.newest, madeAt)
      return true
    },
    hit: new HitWindows(now, limit).hit,
  }
  return { ...store, close: () => clearInterval(timer) }
}
