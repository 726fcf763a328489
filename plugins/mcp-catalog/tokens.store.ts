import type { Database } from '#contracts/database'

/** What is stored of the token of an entry, in the form of one read. */
export interface StoredToken {
  readonly basis: string
  /** Sealed. */
  readonly token: string | null
  /** It holds for a while yet; it is due to be replaced. */
  readonly valid: boolean
  readonly due: boolean
  /** Why nobody got one a moment ago. */
  readonly failure: string | null
}

/** For so long nobody else asks for a token. Longer than an authorization server may take. */
const leaseFor = `interval '30 seconds'`
/** For so long after a failure nobody asks again. */
const pause = `interval '5 seconds'`

/** A token that ends while it is being sent is none. Of a short one half of its last part is enough. */
const margin = `least(interval '30 seconds', (expires_at - due_at) / 2)`

const columns = `basis, token, token IS NOT NULL AND expires_at - ${margin} > now() AS valid, coalesce(due_at <= now(), true) AS due,
  CASE WHEN failed_at > now() - ${pause} THEN failure END AS failure`

export async function findToken(database: Database, tenantId: string, name: string): Promise<StoredToken | undefined> {
  const find = {
    text: `SELECT ${columns} FROM mcp_tokens WHERE tenant_id = $1 AND name = $2`,
    values: [tenantId, name],
  }
  const [[row]] = await database.batch<[StoredToken[]]>(tenantId, [find])
  return row
}

/** Takes the right to get a token, where one is due and nobody else is getting it; resolves to its number. */
export async function takeLease(
  database: Database,
  tenantId: string,
  name: string,
  basis: string,
): Promise<string | undefined> {
  const take = {
    text: `INSERT INTO mcp_tokens AS t (tenant_id, name, basis, lease, leased_until)
           VALUES ($1, $2, $3, 1, now() + ${leaseFor})
           ON CONFLICT (tenant_id, name) DO UPDATE SET lease = t.lease + 1, leased_until = now() + ${leaseFor},
             basis = excluded.basis,
             token = CASE WHEN t.basis = excluded.basis THEN t.token END,
             failed_at = CASE WHEN t.basis = excluded.basis THEN t.failed_at END
           WHERE coalesce(t.leased_until <= now(), true) AND (
             t.basis <> excluded.basis OR (coalesce(t.due_at <= now(), true) AND coalesce(t.failed_at <= now() - ${pause}, true)))
           RETURNING lease::text AS lease`,
    values: [tenantId, name, basis],
  }
  const [[row]] = await database.batch<[{ lease: string }[]]>(tenantId, [take])
  return row?.lease
}

export interface NewToken {
  /** Sealed. */
  readonly token: string
  readonly seconds: number
}

/** False: somebody else has the lease by now, and nothing was stored. */
export async function storeToken(
  database: Database,
  tenantId: string,
  name: string,
  lease: string,
  { token, seconds }: NewToken,
): Promise<boolean> {
  const store = {
    // A fifth of its life is left to replace it in.
    text: `UPDATE mcp_tokens SET token = $4, expires_at = now() + make_interval(secs => $5),
             due_at = now() + make_interval(secs => $5 * 0.8), leased_until = NULL, failed_at = NULL, failure = NULL
           WHERE tenant_id = $1 AND name = $2 AND lease = $3::bigint RETURNING 1`,
    values: [tenantId, name, lease, token, seconds],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [store])
  return rows.length > 0
}

export async function storeTokenFailure(
  database: Database,
  tenantId: string,
  name: string,
  lease: string,
  failure: string,
): Promise<void> {
  const store = {
    text: `UPDATE mcp_tokens SET leased_until = NULL, failed_at = now(), failure = $4
           WHERE tenant_id = $1 AND name = $2 AND lease = $3::bigint`,
    values: [tenantId, name, lease, failure],
  }
  await database.batch(tenantId, [store])
}

/** The server does not take this token, however long it was to hold. Another one that came meanwhile stays. */
export async function dropToken(database: Database, tenantId: string, name: string, token: string): Promise<void> {
  const drop = {
    text: `UPDATE mcp_tokens SET token = NULL, due_at = NULL WHERE tenant_id = $1 AND name = $2 AND token = $3`,
    values: [tenantId, name, token],
  }
  await database.batch(tenantId, [drop])
}
