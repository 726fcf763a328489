import type { Caller, KeyIssuer, KeyRotation, Tokens } from '#contracts/auth'
import type { Database, TenantTx } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { TenantLimits } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import { networksOf } from '#kit'
import { type ListSql, readList } from '#kit/lists'
import { keyOver, unknownKey } from './errors.ts'
import type { IssuedKey, KeyBody, KeyMetadata } from './schema.ts'
import { found } from './agents.ts'

interface AgentKeyOptions {
  readonly database: Database
  readonly tokens: Tokens
  readonly issuer: Pick<KeyIssuer, 'expiryFor'>
  readonly limits?: Pick<TenantLimits, 'stored'> | undefined
}

/** Estimated bytes of a key with its index entries. */
const bytesOf = ({ label, allowedAddresses }: KeyMetadata): number =>
  400 + Buffer.byteLength(label) + Buffer.byteLength(allowedAddresses?.join() ?? '')

// No other text is the id of a key, and PostgreSQL would answer some other texts with an error.
const keyIdForm = /^key_[0-9a-z]{1,64}$/

/** The keys of published agents. Specification 2.2, 4.4. */
export function createAgentKeyService({ database, tokens, issuer, limits }: AgentKeyOptions) {
  const mint = () => {
    const token = tokens.mint()
    return { id: newId('key'), token, hash: tokens.hash('ao:pub-key:v1', token) }
  }
  return {
    /** The key expires no later than the caller's own key: ADR 55. It may be used from networks of its own: ADR 126. */
    async issue(caller: Caller, profile: string, body: KeyBody): Promise<IssuedKey> {
      const { label, expiresAt: asked, allowedAddresses: names } = body
      const networks = names && networksOf(names, null)
      limits?.stored.admit(caller.tenantId)
      const { token, ...minted } = mint()
      const key = await database.tenant(caller.tenantId, async (tx) => {
        const expiresAt = await issuer.expiryFor(tx, caller, asked)
        return insertKey(tx, profile, { ...minted, label, expiresAt, networks, createdBy: caller.keyId })
      })
      const issued = { ...found(key), token }
      limits?.stored.add(caller.tenantId, bytesOf(issued))
      return issued
    },
    /** The new key is the caller's, whose token it was given, not that of whoever issued the old one. */
    async rotate(caller: Caller, profile: string, id: string, { graceSeconds }: KeyRotation): Promise<IssuedKey> {
      if (!keyIdForm.test(id)) throw unknownKey()
      const { token, ...minted } = mint()
      const key = await database.tenant(caller.tenantId, async (tx) => {
        const latest = await issuer.expiryFor(tx, caller, undefined)
        const key = await replaceKey(tx, { profile, id, latest, graceSeconds }, { ...minted, createdBy: caller.keyId })
        // A key that leaked is replaced also by a tenant that is full.
        if (typeof key === 'object') limits?.stored.admit(caller.tenantId, caller.role)
        return key
      })
      if (key === 'over') throw keyOver()
      if (key === undefined) throw unknownKey()
      limits?.stored.add(caller.tenantId, bytesOf(key))
      return { ...key, token }
    },
    list: async (tenantId: string, profile: string, page: Page) =>
      found(await listKeys(database, tenantId, profile, page)),
    async revoke(tenantId: string, profile: string, id: string): Promise<void> {
      if (!keyIdForm.test(id) || !(await revokeKey(database, tenantId, profile, id))) throw unknownKey()
    },
  }
}
export type AgentKeyService = ReturnType<typeof createAgentKeyService>

interface KeyRow {
  id: string
  published_id: string
  label: string
  created_at: string
  created_by: string | null
  last_used_at: string | null
  expires_at: string | null
  allowed_addresses: string[] | null
  revoked_at: string | null
}

// Each driver would read the type of networks in its own way.
const keyColumns = `id, published_id, label, created_at, created_by, last_used_at, expires_at,
  allowed_addresses::text[] AS allowed_addresses, revoked_at`

const toMetadata = (row: KeyRow): KeyMetadata => ({
  id: row.id,
  publishedId: row.published_id,
  label: row.label,
  createdAt: row.created_at,
  createdBy: row.created_by,
  lastUsedAt: row.last_used_at,
  expiresAt: row.expires_at,
  allowedAddresses: row.allowed_addresses,
  revokedAt: row.revoked_at,
})

interface NewKey {
  readonly id: string
  readonly label: string
  readonly hash: Buffer
  readonly expiresAt: Date | undefined
  readonly networks: readonly string[] | undefined
  /** The id of the calling API key. */
  readonly createdBy: string
}

const active = `SELECT id FROM published_agents WHERE tenant_id = $1 AND active_profile = $2`

/** Undefined when the profile is not published. */
async function insertKey(tx: TenantTx, profile: string, key: NewKey): Promise<KeyMetadata | undefined> {
  const insert = {
    text: `INSERT INTO published_agent_keys (tenant_id, id, published_id, label, key_hash, expires_at, created_by, allowed_addresses)
           SELECT $1, $3, agent.id, $4, $5::bytea, $6::timestamptz, $7, $8::cidr[] FROM (${active}) agent
           RETURNING ${keyColumns}`,
    values: [
      tx.tenantId,
      profile,
      key.id,
      key.label,
      key.hash,
      key.expiresAt ?? null,
      key.createdBy,
      key.networks ?? null,
    ],
  }
  const [row] = await tx.query<KeyRow>(insert)
  return row && toMetadata(row)
}

/** Active and revoked keys, newest first. Undefined when the profile is not published. */
async function listKeys(
  database: Database,
  tenantId: string,
  profile: string,
  page: Page,
): Promise<Listing<KeyMetadata> | undefined> {
  const [[agent]] = await database.batch<[{ id: string }[]]>(tenantId, [{ text: active, values: [tenantId, profile] }])
  if (!agent) return undefined
  const list: ListSql = {
    columns: keyColumns,
    from: 'published_agent_keys',
    where: 'tenant_id = $1 AND published_id = $2',
    values: [tenantId, agent.id],
    order: { created_at: 'timestamptz', id: 'text' },
    newestFirst: true,
    atOnce: 200,
  }
  return readList({ database, tenantId }, list, page, toMetadata)
}

interface KeyReplacement {
  readonly profile: string
  readonly id: string
  /** The latest time at which the new key may expire. */
  readonly latest: Date | undefined
  readonly graceSeconds: number
}

/**
 * Adds a key like an existing one, which keeps working for `graceSeconds`. `over`: the existing key no longer works. Undefined when the profile's
 * current publication has no such key.
 */
async function replaceKey(
  tx: TenantTx,
  { profile, id, latest, graceSeconds }: KeyReplacement,
  key: Pick<NewKey, 'id' | 'hash' | 'createdBy'>,
): Promise<KeyMetadata | 'over' | undefined> {
  const { tenantId } = tx
  const find = {
    text: `SELECT revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) AS works
           FROM published_agent_keys WHERE tenant_id = $1 AND published_id = (${active}) AND id = $3 FOR UPDATE`,
    values: [tenantId, profile, id],
  }
  const insert = {
    text: `INSERT INTO published_agent_keys (tenant_id, id, published_id, label, key_hash, expires_at, created_by, allowed_addresses)
           SELECT tenant_id, $3, published_id, label, $4::bytea, LEAST(expires_at, $5::timestamptz), $6, allowed_addresses
           FROM published_agent_keys WHERE tenant_id = $1 AND id = $2
           RETURNING ${keyColumns}`,
    values: [tenantId, id, key.id, key.hash, latest ?? null, key.createdBy],
  }
  const end = {
    text: `UPDATE published_agent_keys SET expires_at = LEAST(expires_at, now() + make_interval(secs => $3))
           WHERE tenant_id = $1 AND id = $2`,
    values: [tenantId, id, graceSeconds],
  }
  const [old] = await tx.query<{ works: boolean }>(find)
  if (!old) return undefined
  if (!old.works) return 'over'
  const [row] = await tx.query<KeyRow>(insert)
  await tx.query(end)
  return toMetadata(row!)
}

/** False for a key that belongs to no publication of this profile. Revoking twice keeps the first time. */
async function revokeKey(database: Database, tenantId: string, profile: string, id: string): Promise<boolean> {
  const update = {
    text: `UPDATE published_agent_keys k SET revoked_at = COALESCE(k.revoked_at, now())
           FROM published_agents p
           WHERE k.tenant_id = $1 AND k.id = $3
             AND p.tenant_id = k.tenant_id AND p.id = k.published_id AND p.profile_name = $2
           RETURNING k.id`,
    values: [tenantId, profile, id],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [update])
  return rows.length > 0
}
