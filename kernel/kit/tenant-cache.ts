import { measureJson } from './bodies.ts'

/** Bytes of memory that a value or a name takes beside its text. Objects of ever new shapes take 59, those of one shape 44, empty lists 37. */
const partBytes = 60

/** About how many bytes of memory a parsed JSON value takes. One made of many small values takes many times as much as its text. */
export function heldBytesOf(value: object): number {
  const text = Buffer.from(JSON.stringify(value))
  return text.length + partBytes * measureJson(text).parts
}

interface Share<T> {
  bytes: number
  /** A Map keeps insertion order: the least recently used is the first. */
  readonly entries: Map<string, { readonly value: T; readonly bytes: number }>
}

/**
 * JSON values of all tenants which can be had again, within a bound of memory. Beyond it the tenant that has the most gives up those it used least
 * recently, so that nobody displaces what others have.
 */
export class TenantCache<T extends object> {
  readonly #mostBytes: number
  readonly #shares = new Map<string, Share<T>>()
  #bytes = 0

  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes
  }

  get bytes(): number {
    return this.#bytes
  }
  /** Counts as a use. */
  get(tenantId: string, key: string): T | undefined {
    const entries = this.#shares.get(tenantId)?.entries
    const entry = entries?.get(key)
    if (!entry) return undefined
    entries!.delete(key)
    entries!.set(key, entry)
    return entry.value
  }
  put(tenantId: string, key: string, value: T): void {
    this.delete(tenantId, key)
    const share = this.#shares.get(tenantId) ?? { bytes: 0, entries: new Map() }
    this.#shares.set(tenantId, share)
    const bytes = heldBytesOf(value)
    share.entries.set(key, { value, bytes })
    share.bytes += bytes
    this.#bytes += bytes
    while (this.#bytes > this.#mostBytes) this.#makeRoom()
  }
  /** False: there was none. */
  delete(tenantId: string, key: string): boolean {
    const share = this.#shares.get(tenantId)
    const entry = share?.entries.get(key)
    if (!share || !entry) return false
    share.entries.delete(key)
    share.bytes -= entry.bytes
    this.#bytes -= entry.bytes
    if (share.entries.size === 0) this.#shares.delete(tenantId)
    return true
  }
  deleteWhere(isOutdated: (value: T) => boolean): void {
    for (const [tenantId, { entries }] of this.#shares)
      for (const [key, { value }] of entries) if (isOutdated(value)) this.delete(tenantId, key)
  }
  valuesOf(tenantId: string): T[] {
    return [...(this.#shares.get(tenantId)?.entries.values() ?? [])].map(({ value }) => value)
  }

  #makeRoom(): void {
    let most: [tenantId: string, share: Share<T>] | undefined
    for (const one of this.#shares) if (!most || one[1].bytes > most[1].bytes) most = one
    const [tenantId, { entries }] = most!
    const [oldest] = entries.keys()
    this.delete(tenantId, oldest!)
  }
}
