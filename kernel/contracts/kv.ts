import { capability } from '../plugin.ts'

export interface Hit {
  readonly allowed: boolean
  /** Hits inside the window, this one included when it was allowed. */
  readonly count: number
  /** Milliseconds until a refused caller may try again; 0 when allowed. */
  readonly retryAfterMs: number
}

/**
 * Small state that processes share: Redis with PostgreSQL as its fallback, PostgreSQL alone, or the memory of a single process. Specification 1.1,
 * ADR 31. Failures of the state itself are AppError `unavailable` (503, retryable).
 */
export interface Kv {
  /** The configured store. It stays `redis` while PostgreSQL replaces Redis. With `memory` no other process shares the state. */
  readonly backend: 'redis' | 'postgres' | 'memory'
  /**
   * True for the first caller of `key` within `ttlMs`, in any process, even while Redis fails. `madeAt` is when the key was made, in milliseconds
   * since the epoch. A key from before this state's memory began cannot be told from a second use, so it is refused as `unavailable`, and its maker
   * makes a new key. A memory that is full begins later: it forgets what was made first.
   */
  claim(key: string, ttlMs: number, madeAt?: number): Promise<boolean>
  /**
   * Counts one hit in a sliding window of one-second buckets; a refused hit is not counted. No window has more than `limit` hits. In a window that
   * spans a loss or a return of Redis, each of the two stores allows up to `limit`.
   */
  hit(key: string, limit: number, windowSeconds: number): Promise<Hit>
  /**
   * Wakes the subscribers of these channels, here and in other processes, with a message of at most 4 kB. The message may be lost, come twice, or
   * be merged with an equal one of the same 50 ms, so store the state that it refers to elsewhere.
   */
  publish(channels: readonly string[], message: string): void
  subscribe(channel: string, listener: (message: string) => void): () => void
}

export const Kv = capability<Kv>('core.kv')
