import type { Hit, Kv } from '#contracts/kv'

/** What each store can do by itself; see `Kv` for the promises. */
export interface Store {
  readonly claim: Kv['claim']
  hit(key: string, limit: number, windowSeconds: number): Promise<Hit>
}
