import type { ResolvedSecret } from '#contracts/secrets'

/** A value, and until when it is given out, in ms since the epoch; Infinity: it does not expire. */
export interface Kept {
  readonly secret: ResolvedSecret
  readonly expiresAt: number
}

interface Entry extends Kept {
  readonly until: number
  readonly bytes: number
}

export interface CacheOptions {
  readonly keepMs: number
  readonly maxBytes: number
  /** Milliseconds since the epoch; tests move it. */
  readonly now?: () => number
}

/** What an entry weighs beside its text. */
const overheadBytes = 256

/** Plain values of a moment ago: bounded in bytes, and gone soon after their time, so that a dump of the memory finds few. */
export class PlainCache {
  readonly #options: CacheOptions
  readonly #now: () => number
  readonly #entries = new Map<string, Entry>()
  #bytes = 0
  #writes = 0
  #timer: NodeJS.Timeout | undefined

  constructor(options: CacheOptions) {
    this.#options = options
    this.#now = options.now ?? Date.now
  }

  get(tenantId: string, name: string): Kept | undefined {
    const entry = this.#entries.get(keyOf(tenantId, name))
    return entry && entry.until > this.#now() ? entry : undefined
  }
  /** To be asked before the database is read, and given to `put`: a value that was replaced in between is not kept. */
  get mark(): number {
    return this.#writes
  }
  put(tenantId: string, kept: Kept, mark: number): void {
    const { keepMs, maxBytes } = this.#options
    const { name, value, previous = '' } = kept.secret
    const bytes = overheadBytes + 2 * (value.length + previous.length)
    if (mark !== this.#writes || bytes > maxBytes) return
    const key = keyOf(tenantId, name)
    this.#delete(key)
    this.#entries.set(key, { ...kept, bytes, until: this.#now() + keepMs })
    this.#bytes += bytes
    for (const oldest of this.#entries.keys()) {
      if (this.#bytes <= maxBytes) break
      this.#delete(oldest)
    }
    this.#timer ??= setInterval(() => this.sweep(), keepMs).unref()
  }
  /** A secret is another one now, or gone: `<tenant>/<name>`, as its writer announces it. */
  forget(key: string): void {
    this.#writes++
    this.#delete(key)
  }
  /** Lets go of what is past its time. */
  sweep(): void {
    const now = this.#now()
    for (const [key, { until }] of this.#entries) if (until <= now) this.#delete(key)
    if (this.#entries.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }
  clear(): void {
    for (const key of this.#entries.keys()) this.#delete(key)
    this.sweep()
  }
  get bytes(): number {
    return this.#bytes
  }

  #delete(key: string): void {
    this.#bytes -= this.#entries.get(key)?.bytes ?? 0
    this.#entries.delete(key)
  }
}

export const keyOf = (tenantId: string, name: string): string => `${tenantId}/${name}`
