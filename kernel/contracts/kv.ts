import { capability } from '../plugin.ts'

export interface Hit {
  readonly allowed: boolean
  /** Hits inside the window, this one included when it was allowed. */
  readonly count: number
  /** Milliseconds until a refused caller may try again; 0 when allowed. */
  readonly retryAfterMs: number
}

/**
 * Small state that processes share: Redis where there is one, with PostgreSQL behind it; PostgreSQL alone; or the memory of
 * a single process. Specification 1.1, ADR 31. Failures of the state itself are AppError `unavailable` (503, retryable).
 */
export interface Kv {
  /** The configured store. It stays `redis` while PostgreSQL stands in for Redis. With `memory` no other process shares the state. */
  readonly backend: 'redis' | 'postgres' | 'memory'
  /**
   * True for the first caller of `key` within `ttlMs`, in any process, whatever becomes of Redis. `madeAt`, in milliseconds
   * since the epoch, is when the key came to be: one from before the memory of this state began can no longer be told from
   * a second use, and is `unavailable`, so that its maker makes another.
   */
  claim(key: string, ttlMs: number, madeAt?: number): Promise<boolean>
  /**
   * Counts one hit in a sliding window of one-second buckets; a refused hit is not counted. Never more than `limit` in any
   * window; in one that spans a loss or a return of Redis, never more than `limit` in each of the two stores.
   */
  hit(key: string, limit: number, windowSeconds: number): Promise<Hit>
  /**
   * Wakes up the subscribers of any of these channels, here and in other processes, with a message of at most 4 kB. The message
   * may be lost, come twice, or be merged with an equal one of the same 50 ms, so the state it is about is stored elsewhere.
   */
  publish(channels: readonly string[], message: string): void
  subscribe(channel: string, listener: (message: string) => void): () => void
}

export const Kv = capability<Kv>('core.kv')
