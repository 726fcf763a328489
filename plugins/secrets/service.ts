import type { Caller } from '#contracts/auth'
import type { Database, TenantTx } from '#contracts/database'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import { keyOf, type PlainCache } from './resolver.ts'
import type { Keyring, Sealed } from './envelope.ts'
import { nameMismatch, notInFuture, unknownVersion, unstorable } from './errors.ts'
import type { CreateSecret, SecretMetadata, UpdateSecret } from './schema.ts'
import { deleteSecret, findMetadata, insertSecret, insertVersion, nextVersion } from './store.ts'

interface SecretServiceOptions {
  readonly database: Database
  readonly keyring: Keyring
  readonly limits: Pick<TenantLimits, 'of' | 'stored'> | undefined
  /** How many versions of a secret are kept, including the current one. */
  readonly keepVersions: number
  /** Other processes hear of a write through the database. This process forgets its cached value at once. */
  readonly cache: Pick<PlainCache, 'forget'>
}

export type SecretService = ReturnType<typeof createSecretService>

/** The operations of admins on the secrets of their tenant. Specification 4.17. */
export function createSecretService({ database, keyring, limits, keepVersions, cache }: SecretServiceOptions) {
  const limitsOf = (tenantId: string) => limits?.of(tenantId) ?? defaultLimits

  /** The value as bytes, and its expiry. Throws 400 or 409 for a value that cannot be stored. */
  const checked = (tenantId: string, { value, expiresAt }: Pick<CreateSecret, 'value' | 'expiresAt'>) => {
    if (!value.isWellFormed()) throw unstorable()
    const bytes = Buffer.from(value)
    const { secretBytes: most } = limitsOf(tenantId)
    if (bytes.length > most) throw overLimit('secretBytes', most)
    limits?.stored.admit(tenantId)
    return { bytes, expiresAt: endOf(expiresAt) }
  }
  const change = async <T>(tenantId: string, name: string, work: (tx: TenantTx) => Promise<T>): Promise<T> => {
    const made = await database.tenant(tenantId, work)
    cache.forget(keyOf(tenantId, name))
    return made
  }
  return {
    async create({ tenantId, keyId }: Caller, input: CreateSecret): Promise<SecretMetadata> {
      const { name, key = null } = input
      const { bytes, expiresAt } = checked(tenantId, input)
      const sealed = keyring.seal({ tenantId, name, version: 1 }, bytes)
      const { secrets: most } = limitsOf(tenantId)
      const made = await database.tenant(tenantId, async (tx) => {
        await insertSecret(tx, name, key, most)
        await insertVersion(tx, name, 1, { sealed, expiresAt, createdBy: keyId }, keepVersions)
        return findMetadata(tx, name)
      })
      limits?.stored.add(tenantId, bytes.length)
      return made
    },
    async update({ tenantId, keyId }: Caller, name: string, input: UpdateSecret): Promise<SecretMetadata> {
      if (input.name !== undefined && input.name !== name) throw nameMismatch()
      const { bytes, expiresAt } = checked(tenantId, input)
      return change(tenantId, name, async (tx) => {
        const version = await nextVersion(tx, name, input.key ?? null)
        const sealed = keyring.seal({ tenantId, name, version }, bytes)
        await insertVersion(tx, name, version, { sealed, expiresAt, createdBy: keyId }, keepVersions)
        return findMetadata(tx, name)
      })
    },
    /** Restoring never rewrites history: the old value becomes the newest version, with its former expiry. */
    restore({ tenantId, keyId }: Caller, name: string, restored: number): Promise<SecretMetadata> {
      return change(tenantId, name, async (tx) => {
        const version = await nextVersion(tx, name)
        const { expiresAt, ...old } = await readVersion(tx, name, restored)
        const sealed = keyring.seal(
          { tenantId, name, version },
          keyring.open({ tenantId, name, version: restored }, old),
        )
        const made = { sealed, expiresAt, createdBy: keyId, restoredFrom: restored }
        await insertVersion(tx, name, version, made, keepVersions)
        return findMetadata(tx, name)
      })
    },
    remove: ({ tenantId }: Caller, name: string): Promise<void> =>
      change(tenantId, name, (tx) => deleteSecret(tx, name)),
  }
}

interface StoredVersion {
  master_key: string
  wrapped_key: Buffer
  ciphertext: Buffer
  expires_at: string | null
}

async function readVersion(
  tx: TenantTx,
  name: string,
  version: number,
): Promise<Sealed & { readonly expiresAt: string | null }> {
  const [row] = await tx.query<StoredVersion>({
    text: `SELECT master_key, wrapped_key, ciphertext, expires_at FROM secret_versions
           WHERE tenant_id = $1 AND name = $2 AND version = $3`,
    values: [tx.tenantId, name, version],
  })
  if (!row) throw unknownVersion()
  const { master_key: masterKey, wrapped_key: wrappedKey, ciphertext, expires_at: expiresAt } = row
  return { masterKey, wrappedKey, ciphertext, expiresAt }
}

/** PostgreSQL accepts larger years, but not in the form that JavaScript writes. */
const lastYear = 9999

function endOf(expiresAt: string | undefined): string | null {
  if (expiresAt === undefined) return null
  const time = new Date(expiresAt)
  // An invalid date is NaN, which is not greater than now either.
  if (!(time.getTime() > Date.now()) || time.getUTCFullYear() > lastYear) throw notInFuture()
  return time.toISOString()
}
