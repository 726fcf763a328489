import type { AccountKey, ConnectionState, Grant } from '#contracts/apps'
import type { Database, TenantTx } from '#contracts/database'

/** A connection as it is stored. */
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
  /** Its secret holds for a while yet; something is to be done about it; it has been so for a while. */
  readonly valid: boolean
  readonly due: boolean
  readonly failures: number
}

/** For so long nobody else renews a connection: longer than an authorization server may take. */
const leaseFor = `interval '30 seconds'`
/** A token that expires while it is being sent is useless. Of a short one half of its last part is enough; one that failed is due later. */
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

/** The connection, held until the end of the transaction; undefined when there is none, or another grant of it than `fence` says. */
export async function lockConnection(tx: TenantTx, id: string, fence?: string): Promise<Connection | undefined> {
  const [row] = await tx.query<Connection>({
    text: `SELECT ${columns} FROM app_connections
           WHERE tenant_id = $1 AND id = $2 AND ($3::bigint IS NULL OR fence = $3::bigint) FOR UPDATE`,
    values: [tx.tenantId, id, fence ?? null],
  })
  return row
}

/** Takes the right to do what is due about a connection; undefined when nothing is, or somebody else does it. */
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

/** A grant of which nobody says how long it holds is taken for a short one, if it can be renewed. */
const unknownSeconds = 300
const mostSeconds = 30 * 24 * 60 * 60

/** Writes a new grant into a connection that is locked: a fifth of its life is left to renew it in. */
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

/** For so long a connection is shown of which nothing is left: what its owner has not finished, and what has ended. */
const keep = { initiated: '1 day', ended: '90 days' } as const

/** Nothing is left of the grant. */
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

/** It could not be done, and is tried again later; `state`: as which it counts from now on. */
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
 * The app does not take this grant: it is due now, whatever was said of it. Whoever renews it already goes on with that: its refresh token is good
 * once. False: it was replaced meanwhile.
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

/** It is not to be used any more from now on; its secret is kept until it was taken back. */
export async function markRevoked(tx: TenantTx, id: string): Promise<void> {
  await tx.query({
    text: `UPDATE app_connections SET state = 'revoked', reason = NULL, fence = fence + 1, failures = 0,
             leased_until = now() + ${leaseFor}, due_at = now(), updated_at = now()
           WHERE tenant_id = $1 AND id = $2`,
    values: [tx.tenantId, id],
  })
  await tx.query({
    text: 'DELETE FROM app_authorizations WHERE tenant_id = $1 AND connection_id = $2',
    values: [tx.tenantId, id],
  })
}

/** It has been shown for long enough; under a legal hold it is looked at again later. */
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

export interface NewConnection extends AccountKey {
  readonly id: string
  readonly webhookUrl: string | undefined
}

/**
 * The connection of its owner in this toolkit, held until the end of the transaction; a new one as `initiated`. Undefined: the tenant has
 * as many as it may.
 */
export async function ensureConnection(
  tx: TenantTx,
  { id, provider, toolkit, endUserId, webhookUrl }: NewConnection,
  most: number,
): Promise<Connection | undefined> {
  const { tenantId } = tx
  const owner = [tenantId, toolkit, endUserId]
  const find = {
    text: `SELECT ${columns} FROM app_connections WHERE tenant_id = $1 AND toolkit = $2 AND end_user_id = $3 FOR UPDATE`,
    values: owner,
  }
  const [known] = await tx.query<Connection>(find)
  if (!known) {
    // Whoever adds one holds the row of the tenant, so that each is counted before the next is added.
    await tx.query({ text: 'SELECT 1 FROM tenants WHERE id = $1 FOR NO KEY UPDATE', values: [tenantId] })
    await tx.query({
      text: `INSERT INTO app_connections (tenant_id, id, provider, toolkit, end_user_id, state, webhook_url, due_at)
             SELECT $1, $4, $5, $2, $3, 'initiated', $6, now() + interval '${keep.initiated}'
             WHERE (SELECT count(*) FROM app_connections WHERE tenant_id = $1) < $7
             ON CONFLICT (tenant_id, toolkit, end_user_id) DO NOTHING`,
      values: [...owner, id, provider, webhookUrl ?? null, most],
    })
    return (await tx.query<Connection>(find))[0]
  }
  if (webhookUrl !== undefined) {
    const values = [tenantId, known.id, webhookUrl]
    await tx.query({ text: 'UPDATE app_connections SET webhook_url = $3 WHERE tenant_id = $1 AND id = $2', values })
  }
  // What still works goes on working until its owner has come back.
  if (known.provider === provider && isUsable(known)) return known
  const [begun] = await tx.query<Connection>({
    text: `UPDATE app_connections SET provider = $3, state = 'initiated', reason = NULL, secret = NULL, fence = fence + 1,
             failures = 0, expires_at = NULL, due_at = now() + interval '${keep.initiated}', updated_at = now()
           WHERE tenant_id = $1 AND id = $2 RETURNING ${columns}`,
    values: [tenantId, known.id, provider],
  })
  return begun
}

/** There is a grant, which may hold no more but can be renewed, or has failed in a way that may pass. */
export const isUsable = ({ state, secret }: Pick<Connection, 'state' | 'secret'>): boolean =>
  secret !== null && (state === 'active' || state === 'failed')

export async function countConnections(database: Database, tenantId: string): Promise<number> {
  const count = { text: 'SELECT count(*)::int AS count FROM app_connections WHERE tenant_id = $1', values: [tenantId] }
  const [[row]] = await database.batch<[{ count: number }[]]>(tenantId, [count])
  return row!.count
}
