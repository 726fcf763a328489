import type { Hit, Kv } from '#contracts/kv'

/** What each store can do by itself; see `Kv` for the promises. */
export interface Store {
  readonly claim: Kv['claim']
  hit(key: string, limit: number, windowSeconds: number): Promise<Hit>
}

export type Listener = (message: string) => void

/** Who listens to which channel in this process. */
export interface Channels {
  /** Returns the way back, which tells whether nobody is left. */
  add(channel: string, listener: Listener): () => boolean
  has(channel: string): boolean
  names(): string[]
  readonly size: number
  deliver(channel: string, message: string): void
}
