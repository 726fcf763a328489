import { type AppError, unavailable } from '#kernel'
import type { Hit, Kv } from '#contracts/kv'

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
