import type { Database } from '#contracts/database'
import {
  type HeaderMap,
  type ResolvedSecret,
  secretErrors,
  type Secrets,
  secretsIn,
  withSecrets,
} from '#contracts/secrets'
import type { Kept, PlainCache } from './cache.ts'
import type { Keyring } from './envelope.ts'
import type { Reads } from './reads.ts'

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

export interface ResolverOptions {
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
