import type { ResolvedSecret } from '#contracts/secrets'

/** A plain value and its expiry in ms since the epoch; Infinity for a value without one. */
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
  /** Milliseconds since the epoch. Tests replace the clock. */
  readonly now?: () => number
}

/** The memory of an entry beside its text, in bytes. */
const overheadBytes = 256

/** A cache of plain values. It is bounded in bytes and entries leave soon after their time, so that a memory dump shows few secrets. */
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
  /** Read the mark before the database and pass it to `put`. If a secret changed in between, the value may be old and is not cached. */
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
  /** The secret `<tenant>/<name>` was changed or deleted. Its writer announces the key in this form. */
  forget(key: string): void {
    this.#writes++
    this.#delete(key)
  }
  /** Drops entries whose time is over. */
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
