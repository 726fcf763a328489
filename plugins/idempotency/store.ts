import type { Database } from '#contracts/database'
import type { Answer, Plan } from '#contracts/idempotency'

/** A request's claim on a key. `attempt` is a fencing token: a write with an older one changes nothing. */
export interface Held {
  readonly tenantId: string
  readonly scope: string
  readonly key: string
  readonly attempt: number
}

export interface ClaimRow {
  /** The key is this request's until it ends. */
  readonly claimed: boolean
  readonly same: boolean
  readonly plan: Plan
  readonly attempt: number
  readonly repeated: boolean
  readonly answer: Answer | null
}

const lease = `now() + $6 * interval '1 second'`
const claim = {
  name: 'idempotency-claim',
  text: `WITH claimed AS (
           INSERT INTO idempotency_keys AS held (tenant_id, scope, key, fingerprint, plan, locked_until, expires_at)
           VALUES ($1, $2, $3, $4::bytea, $5::json, ${lease}, now() + $7 * interval '1 second')
           ON CONFLICT (tenant_id, scope, key) DO UPDATE SET
             locked_until = EXCLUDED.locked_until,
             attempt = held.attempt + 1,
             fingerprint = EXCLUDED.fingerprint,
             plan = CASE WHEN held.expires_at > now() THEN held.plan ELSE EXCLUDED.plan END,
             first_attempt = CASE WHEN held.expires_at > now() THEN held.first_attempt ELSE held.attempt + 1 END,
             expires_at = CASE WHEN held.expires_at > now() THEN held.expires_at ELSE EXCLUDED.expires_at END,
             answer = NULL
           WHERE (held.locked_until IS NULL OR held.locked_until <= now())
             AND (held.expires_at <= now() OR (held.fingerprint = EXCLUDED.fingerprint AND held.answer IS NULL))
           RETURNING plan, attempt, attempt > first_attempt AS repeated)
         SELECT true AS claimed, true AS same, plan, attempt, repeated, NULL::json AS answer FROM claimed
         UNION ALL
         SELECT false, fingerprint = $4::bytea, plan, attempt, true, answer FROM idempotency_keys
         WHERE tenant_id = $1 AND scope = $2 AND key = $3 AND NOT EXISTS (SELECT FROM claimed)`,
}

export interface NewClaim {
  readonly tenantId: string
  readonly scope: string
  readonly key: string
  readonly fingerprint: Buffer
  readonly plan: Plan
  readonly leaseSeconds: number
  readonly keptSeconds: number
}

/** Claims a key, or finds who has it. Undefined: a concurrent request wrote it during this statement, so ask again. */
export async function claimKey(database: Database, claimed: NewClaim): Promise<ClaimRow | undefined> {
  const { tenantId, scope, key, fingerprint, plan, leaseSeconds, keptSeconds } = claimed
  const values = [tenantId, scope, key, fingerprint, JSON.stringify(plan), leaseSeconds, keptSeconds]
  const [row] = await database.unit<ClaimRow>(tenantId, { ...claim, values }, { order: orderOf(claimed) })
  return row
}

const orderOf = ({ scope, key }: Pick<Held, 'scope' | 'key'>): string => `${scope}\n${key}`
const mine = `tenant_id = $1 AND scope = $2 AND key = $3 AND attempt = $4`
const valuesOf = ({ tenantId, scope, key, attempt }: Held): unknown[] => [tenantId, scope, key, attempt]

const release = {
  name: 'idempotency-release',
  text: `UPDATE idempotency_keys SET locked_until = NULL, answer = $5::json WHERE ${mine}`,
}

export async function releaseKey(database: Database, held: Held, answer: Answer | undefined): Promise<void> {
  const values = [...valuesOf(held), answer === undefined ? null : JSON.stringify(answer)]
  await database.unit(held.tenantId, { ...release, values }, { order: orderOf(held) })
}

const forget = { name: 'idempotency-forget', text: `DELETE FROM idempotency_keys WHERE ${mine}` }

export async function forgetKey(database: Database, held: Held): Promise<void> {
  await database.unit(held.tenantId, { ...forget, values: valuesOf(held) }, { order: orderOf(held) })
}

const renew = {
  name: 'idempotency-renew',
  text: `UPDATE idempotency_keys kept SET locked_until = now() + $5 * interval '1 second'
         FROM unnest($2::text[], $3::text[], $4::integer[]) AS held (scope, key, attempt)
         WHERE kept.tenant_id = $1 AND kept.scope = held.scope AND kept.key = held.key AND kept.attempt = held.attempt
           AND kept.locked_until IS NOT NULL`,
}

export const renewKeys = (
  database: Database,
  tenantId: string,
  held: readonly Held[],
  leaseSeconds: number,
): Promise<unknown> => {
  const columns = [held.map((h) => h.scope), held.map((h) => h.key), held.map((h) => h.attempt)]
  return database.batch(tenantId, [{ ...renew, values: [tenantId, ...columns, leaseSeconds] }])
}

const everyTenant = { name: 'idempotency-tenants', text: `SELECT id FROM tenants ORDER BY id` }

export async function tenantIds(database: Database): Promise<string[]> {
  const [rows] = await database.systemBatch<[{ id: string }[]]>([everyTenant])
  return rows.map(({ id }) => id)
}

/** Rows that one statement deletes, so that a backlog blocks nobody. */
const cleanLimit = 500
const clean = {
  name: 'idempotency-clean',
  text: `WITH old AS (
           SELECT scope, key FROM idempotency_keys
           WHERE tenant_id = $1 AND expires_at <= now() AND (locked_until IS NULL OR locked_until <= now())
           ORDER BY expires_at LIMIT ${cleanLimit} FOR UPDATE SKIP LOCKED)
         DELETE FROM idempotency_keys gone USING old
         WHERE gone.tenant_id = $1 AND gone.scope = old.scope AND gone.key = old.key RETURNING 1`,
}

/** Deletes a tenant's expired keys. Any number of processes may do so at once. */
export async function cleanKeys(database: Database, tenantId: string): Promise<number> {
  let count = 0
  for (;;) {
    const [rows] = await database.batch<[object[]]>(tenantId, [{ ...clean, values: [tenantId] }])
    count += rows.length
    if (rows.length < cleanLimit) return count
  }
}
