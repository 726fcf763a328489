import type { AccountKey, ConnectionState, Grant } from '#contracts/apps'
import type { Database, TenantTx } from '#contracts/database'
import type { ConnectionView } from '../schema.ts'

/** A connection: one account of a tenant or of an end user in one toolkit. */
export interface Connection {
  readonly id: string
  readonly provider: string
  readonly toolkit: string
  readonly endUserId: string
  readonly state: ConnectionState
  readonly reason: string | null
  /** Sealed. */
  readonly secret: string | null
  readonly renewable: boolean
  readonly fence: string
  readonly webhookUrl: string | null
  readonly expiresAt: string | null
  readonly createdAt: string
  readonly updatedAt: string
  /** `valid`: the secret can still be used. `due`: work is waiting, such as a renewal. `failures`: failed attempts in a row. */
  readonly valid: boolean
  readonly due: boolean
  readonly failures: number
}

/** How long the lease keeps other processes away. It must be longer than an authorization server may take. */
const leaseFor = `interval '30 seconds'`
/**
 * A token must not expire on its way to the app. For a short-lived token the margin is half of the time after it becomes due; it is zero when a
 * failure has moved `due_at` behind the expiry.
 */
const margin = `greatest(least(interval '30 seconds', (expires_at - due_at) / 2), interval '0')`

export const columns = `id, provider, toolkit, end_user_id AS "endUserId", state, reason, secret, renewable, fence::text AS fence,
  webhook_url AS "webhookUrl", expires_at AS "expiresAt", created_at AS "createdAt", updated_at AS "updatedAt", failures,
  secret IS NOT NULL AND state = 'active' AND coalesce(expires_at - coalesce(${margin}, interval '0') > now(), true) AS valid,
  coalesce(due_at <= now(), false) AS due`

export async function findConnection(
  database: Database,
  tenantId: string,
  { toolkit, endUserId }: Pick<AccountKey, 'toolkit' | 'endUserId'>,
): Promise<Connection | undefined> {
  const find = {
    name: 'app-connection-of',
    text: `SELECT ${columns} FROM app_connections WHERE tenant_id = $1 AND toolkit = $2 AND end_user_id = $3`,
    values: [tenantId, toolkit, endUserId],
  }
  const [[row]] = await database.batch<[Connection[]]>(tenantId, [find])
  return row
}

export async function connectionById(
  database: Database,
  tenantId: string,
  id: string,
): Promise<Connection | undefined> {
  const find = {
    text: `SELECT ${columns} FROM app_connections WHERE tenant_id = $1 AND id = $2`,
    values: [tenantId, id],
  }
  const [[row]] = await database.batch<[Connection[]]>(tenantId, [find])
  return row
}

/** Locks the connection until the end of the transaction. Undefined when there is none, or when its `fence` is another one. */
export async function lockConnection(tx: TenantTx, id: string, fence?: string): Promise<Connection | undefined> {
  const [row] = await tx.query<Connection>({
    text: `SELECT ${columns} FROM app_connections
           WHERE tenant_id = $1 AND id = $2 AND ($3::bigint IS NULL OR fence = $3::bigint) FOR UPDATE`,
    values: [tx.tenantId, id, fence ?? null],
  })
  return row
}

/** Takes the lease on a connection that is due. Undefined when it is not due or another process holds the lease. */
export async function takeLease(database: Database, tenantId: string, id: string): Promise<Connection | undefined> {
  const take = {
    text: `UPDATE app_connections SET leased_until = now() + ${leaseFor}
           WHERE tenant_id = $1 AND id = $2 AND due_at <= now() AND coalesce(leased_until <= now(), true)
           RETURNING ${columns}`,
    values: [tenantId, id],
  }
  const [[row]] = await database.batch<[Connection[]]>(tenantId, [take])
  return row
}

/** The lifetime that is assumed for a renewable grant without one, and the longest lifetime that is believed. */
const unknownSeconds = 300
const mostSeconds = 30 * 24 * 60 * 60

/** Writes a new grant into a locked connection. The grant becomes due after 80 % of its life, so a fifth is left to renew it. */
export async function storeGrant(
  tx: TenantTx,
  id: string,
  grant: { readonly sealed: string } & Pick<Grant, 'seconds' | 'renewable'>,
): Promise<void> {
  const seconds = grant.seconds ?? (grant.renewable ? unknownSeconds : undefined)
  const holds = seconds === undefined ? null : Math.min(Math.max(seconds, 1), mostSeconds)
  await tx.query({
    text: `UPDATE app_connections SET secret = $3, renewable = $4, state = 'active', reason = NULL, failures = 0, fence = fence + 1,
             leased_until = NULL, expires_at = now() + make_interval(secs => $5),
             due_at = now() + make_interval(secs => $5 * CASE WHEN $4 THEN 0.8 ELSE 1 END), updated_at = now()
           WHERE tenant_id = $1 AND id = $2`,
    values: [tx.tenantId, id, grant.sealed, grant.renewable, holds],
  })
}

/** How long a connection without a grant stays visible: an unfinished one, and an ended one. */
const keep = { initiated: '1 day', ended: '90 days' } as const

/** Ends a connection and deletes its secret. */
export async function storeEnd(
  tx: TenantTx,
  id: string,
  state: 'expired' | 'failed' | 'revoked',
  reason: string | null,
): Promise<void> {
  await tx.query({
    text: `UPDATE app_connections SET state = $3, reason = $4, secret = NULL, fence = fence + 1, leased_until = NULL, failures = 0,
             expires_at = NULL, due_at = now() + interval '${keep.ended}', updated_at = now()
           WHERE tenant_id = $1 AND id = $2`,
    values: [tx.tenantId, id, state, reason],
  })
}

/** Records a failed attempt and schedules the next one. `state`, when given, becomes the state of the connection. */
export async function storeFailure(
  tx: TenantTx,
  id: string,
  failure: { readonly reason: string; readonly state?: 'failed'; readonly inSeconds: number },
): Promise<void> {
  await tx.query({
    text: `UPDATE app_connections SET failures = failures + 1, reason = $3, state = coalesce($4, state), leased_until = NULL,
             due_at = now() + make_interval(secs => $5), updated_at = now()
           WHERE tenant_id = $1 AND id = $2`,
    values: [tx.tenantId, id, failure.reason, failure.state ?? null, failure.inSeconds],
  })
}

/**
 * The app has refused this grant, so the grant becomes due now. A lease that another process holds stays: a refresh token works only once, so nobody
 * else may use it. False when the grant was replaced in the meantime.
 */
export async function doubtGrant(database: Database, tenantId: string, id: string, fence: string): Promise<boolean> {
  const doubt = {
    text: `UPDATE app_connections SET expires_at = now(), due_at = now()
           WHERE tenant_id = $1 AND id = $2 AND fence = $3::bigint AND state = 'active' RETURNING 1`,
    values: [tenantId, id, fence],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [doubt])
  return rows.length > 0
}

/** Ends the use of a connection. Its secret is kept until the app has revoked it. The failures of revocations are counted on. */
export async function markRevoked(tx: TenantTx, id: string): Promise<void> {
  await tx.query({
    text: `UPDATE app_connections SET state = 'revoked', reason = NULL, fence = fence + 1,
             failures = CASE WHEN state = 'revoked' THEN failures ELSE 0 END, leased_until = now() + ${leaseFor}, due_at = now(), updated_at = now()
           WHERE tenant_id = $1 AND id = $2`,
    values: [tx.tenantId, id],
  })
  await tx.query({
    text: 'DELETE FROM app_authorizations WHERE tenant_id = $1 AND connection_id = $2',
    values: [tx.tenantId, id],
  })
}

/** Deletes a connection whose retention time is over. Under a legal hold it stays, and is checked again after a day. */
export async function deleteConnection(tx: TenantTx, id: string): Promise<void> {
  const [held] = await tx.query({
    text: `UPDATE app_connections SET due_at = now() + interval '1 day', leased_until = NULL
           WHERE tenant_id = $1 AND id = $2 AND EXISTS (SELECT FROM tenants WHERE id = $1 AND legal_hold) RETURNING 1`,
    values: [tx.tenantId, id],
  })
  if (held) return
  await tx.query({
    text: 'DELETE FROM app_connections WHERE tenant_id = $1 AND id = $2',
    values: [tx.tenantId, id],
  })
}

interface NewConnection extends AccountKey {
  readonly id: string
  readonly webhookUrl: string | undefined
}

interface Ensured {
  readonly connection: Connection
  /** As it was before, if it had a secret that is not kept: at its app the account still has to be revoked. */
  readonly former?: Connection
}

/**
 * The connection of this owner in this toolkit, locked until the end of the transaction; a new one has the state `initiated`. Undefined when the
 * tenant has reached its limit.
 */
export async function ensureConnection(
  tx: TenantTx,
  { id, provider, toolkit, endUserId, webhookUrl }: NewConnection,
  most: number,
): Promise<Ensured | undefined> {
  const { tenantId } = tx
  const owner = [tenantId, toolkit, endUserId]
  const find = {
    text: `SELECT ${columns} FROM app_connections WHERE tenant_id = $1 AND toolkit = $2 AND end_user_id = $3 FOR UPDATE`,
    values: owner,
  }
  const [known] = await tx.query<Connection>(find)
  if (!known) {
    // Each insert locks the tenant's row. So concurrent inserts are counted one after the other and cannot exceed the limit.
    await tx.query({ text: 'SELECT 1 FROM tenants WHERE id = $1 FOR NO KEY UPDATE', values: [tenantId] })
    await tx.query({
      text: `INSERT INTO app_connections (tenant_id, id, provider, toolkit, end_user_id, state, webhook_url, due_at)
             SELECT $1, $4, $5, $2, $3, 'initiated', $6, now() + interval '${keep.initiated}'
             WHERE (SELECT count(*) FROM app_connections WHERE tenant_id = $1) < $7
             ON CONFLICT (tenant_id, toolkit, end_user_id) DO NOTHING`,
      values: [...owner, id, provider, webhookUrl ?? null, most],
    })
    const [connection] = await tx.query<Connection>(find)
    return connection && { connection }
  }
  if (webhookUrl !== undefined) {
    const values = [tenantId, known.id, webhookUrl]
    await tx.query({ text: 'UPDATE app_connections SET webhook_url = $3 WHERE tenant_id = $1 AND id = $2', values })
  }
  // A grant that still works is kept until its owner has connected the account again.
  if (known.provider === provider && isUsable(known)) return { connection: known }
  const [begun] = await tx.query<Connection>({
    text: `UPDATE app_connections SET provider = $3, state = 'initiated', reason = NULL, secret = NULL, fence = fence + 1,
             failures = 0, expires_at = NULL, due_at = now() + interval '${keep.initiated}', updated_at = now()
           WHERE tenant_id = $1 AND id = $2 RETURNING ${columns}`,
    values: [tenantId, known.id, provider],
  })
  return { connection: begun!, ...(known.secret === null ? {} : { former: known }) }
}

/** The connection has a grant. The grant may have expired or have failed, but a renewal may still succeed. */
export const isUsable = ({ state, secret }: Pick<Connection, 'state' | 'secret'>): boolean =>
  secret !== null && (state === 'active' || state === 'failed')

export async function countConnections(database: Database, tenantId: string): Promise<number> {
  const count = { text: 'SELECT count(*)::int AS count FROM app_connections WHERE tenant_id = $1', values: [tenantId] }
  const [[row]] = await database.batch<[{ count: number }[]]>(tenantId, [count])
  return row!.count
}

/** A connection as its tenant sees it. */
export const viewOf = (row: Connection): ConnectionView => {
  const { id, toolkit, endUserId, state, reason, expiresAt, renewable, webhookUrl, createdAt, updatedAt } = row
  return {
    id,
    toolkit,
    ...(endUserId === '' ? {} : { endUserId }),
    state,
    ...(reason === null ? {} : { reason }),
    ...(expiresAt === null ? {} : { expiresAt }),
    renewable,
    ...(webhookUrl === null ? {} : { webhook: { url: webhookUrl } }),
    createdAt,
    updatedAt,
  }
}
