import { capability } from '#kernel'

export interface Hit {
  readonly allowed: boolean
  /** Hits inside the window, this one included when it was allowed. */
  readonly count: number
  /** Milliseconds until a refused caller may try again; 0 when allowed. */
  readonly retryAfterMs: number
}

/** Small shared state between processes: Redis when configured, memory for a single process. Specification 1.1. */
export interface Kv {
  readonly backend: 'redis' | 'memory'
  /** True for the first caller of `key` within `ttlMs`. Throws AppError `unavailable` when the store is away or full. */
  claim(key: string, ttlMs: number): Promise<boolean>
  /** Counts one hit in a sliding window of one-second buckets; a refused hit is not counted. Never more than `limit` in any window. */
  hit(key: string, limit: number, windowSeconds: number): Promise<Hit>
  /** Best effort wake-up of other processes; the truth is elsewhere. */
  publish(channel: string, message: string): void
  subscribe(channel: string, listener: (message: string) => void): () => void
}

export const Kv = capability<Kv>('core.kv')
