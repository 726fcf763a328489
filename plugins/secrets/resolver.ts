import type { Database } from '#contracts/database'
import {
  type HeaderMap,
  type ResolvedSecret,
  secretErrors,
  type Secrets,
  secretsIn,
  withSecrets,
} from '#contracts/secrets'
import type { Keyring } from './envelope.ts'
import type { Reads } from './reads.ts'

/** A plain value and its expiry in ms since the epoch; Infinity for a value without one. */
interface Kept {
  readonly secret: ResolvedSecret
  readonly expiresAt: number
}

interface Entry extends Kept {
  readonly until: number
  readonly bytes: number
}

interface CacheOptions {
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

interface Row {
  version: number
  current: boolean
  master_key: string
  wrapped_key: Buffer
  ciphertext: Buffer
  ends: number | null
}

/** For this long after a change the previous value is still used for signatures, beside the new one. */
const overlap = `interval '24 hours'`

// The current version and, shortly after a change, the previous one. A deleted tenant has no versions.
const find = {
  name: 'secrets_find',
  text: `SELECT v.version, v.version = s.version AS current, v.master_key, v.wrapped_key, v.ciphertext,
           (extract(epoch FROM v.expires_at) * 1000)::float8 AS ends
         FROM secrets s JOIN secret_versions v ON v.tenant_id = s.tenant_id AND v.name = s.name
           JOIN tenants t ON t.id = s.tenant_id AND t.deleted_at IS NULL
         WHERE s.tenant_id = $1 AND s.name = $2
           AND (v.version = s.version OR (v.version = s.version - 1 AND s.updated_at > now() - ${overlap}))
         ORDER BY v.version DESC`,
}

interface ResolverOptions {
  readonly database: Database
  readonly keyring: Keyring
  readonly cache: PlainCache
  readonly reads: Pick<Reads, 'note'>
  /** Called with the outcome of each resolution, for metrics. */
  readonly onOutcome: (outcome: 'resolved' | 'refused') => void
}

/** Resolves secrets to plain text. A repeated request within seconds is answered from the cache. */
export function createResolver({ database, keyring, cache, reads, onOutcome }: ResolverOptions): Secrets {
  const load = async (tenantId: string, name: string): Promise<Kept> => {
    const { mark } = cache
    const [rows] = await database.batch<[Row[]]>(tenantId, [{ ...find, values: [tenantId, name] }])
    const [row, before] = rows
    if (!row?.current) throw unknown(name)
    const open = ({ version, master_key: masterKey, wrapped_key: wrappedKey, ciphertext }: Row): string =>
      keyring.open({ tenantId, name, version }, { masterKey, wrappedKey, ciphertext }).toString()
    const secret = {
      name,
      version: row.version,
      value: open(row),
      ...(before ? previousOf(() => open(before)) : {}),
    }
    const kept = { secret, expiresAt: row.ends ?? Infinity }
    cache.put(tenantId, kept, mark)
    return kept
  }
  const resolve = async (tenantId: string, name: string, reader: string): Promise<ResolvedSecret> => {
    try {
      const { secret, expiresAt } = cache.get(tenantId, name) ?? (await load(tenantId, name))
      if (expiresAt <= Date.now()) throw expired(name)
      reads.note(tenantId, secret, reader)
      onOutcome('resolved')
      return secret
    } catch (error) {
      onOutcome('refused')
      throw error
    }
  }
  return {
    resolve,
    async unknown(tenantId, names) {
      if (names.length === 0) return []
      const known = {
        text: 'SELECT name FROM secrets WHERE tenant_id = $1 AND name = ANY ($2)',
        values: [tenantId, names],
      }
      const [rows] = await database.batch<[{ name: string }[]]>(tenantId, [known])
      const found = new Set(rows.map((row) => row.name))
      return names.filter((name) => !found.has(name))
    },
    headers: (tenantId, headers, reader) => fill(headers, (name) => resolve(tenantId, name, reader)),
  }
}

/** A previous value that cannot be decrypted is left out, because the current one works without it. */
function previousOf(open: () => string): Pick<ResolvedSecret, 'previous'> {
  try {
    return { previous: open() }
  } catch {
    return {}
  }
}

/** The characters of a header's value. A line break would add a second header. */
const headerForm = /^[\t\x20-\x7e\x80-\xff]*$/

async function fill(
  headers: HeaderMap,
  resolve: (name: string) => Promise<ResolvedSecret>,
): Promise<Record<string, string>> {
  const values = new Map<string, string>()
  for (const name of new Set(Object.values(headers).flatMap(secretsIn))) {
    const { value } = await resolve(name)
    // The check is made here, because the libraries that send headers quote a refused value in their errors.
    if (!headerForm.test(value)) throw unfit(name)
    values.set(name, value)
  }
  return Object.fromEntries(
    Object.entries(headers).map(([header, text]) => [header, withSecrets(text, (name) => values.get(name)!)]),
  )
}

/** The resolver without a database or a master key: it knows no secret and resolves none. */
export function createNoSecrets(): Secrets {
  const refuse = async (): Promise<never> => {
    throw secretErrors.secretsUnavailable()
  }
  return { unknown: refuse, resolve: refuse, headers: refuse }
}

export const unknown = (name: string) =>
  secretErrors.unknownSecret({
    name,
    message: `This tenant has no secret '${name}'; create it with POST /api/secrets.`,
  })
const expired = (name: string) =>
  secretErrors.secretExpired({
    message: `The secret '${name}' has expired; PUT /api/secrets/${name} with a new value.`,
  })
const unfit = (name: string) =>
  secretErrors.secretUnfit({
    message: `The value of the secret '${name}' cannot be part of a header: it holds a line break, or a character that headers do not take.`,
  })
