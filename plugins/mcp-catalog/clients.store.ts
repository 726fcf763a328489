import type { Database } from '#contracts/database'

/** The sealed client registration of an entry. Undefined when there is none, when it has another basis, or when its secret is about to expire. */
export async function findClient(
  database: Database,
  tenantId: string,
  name: string,
  basis: string,
): Promise<string | undefined> {
  const find = {
    text: `SELECT client FROM mcp_oauth_clients WHERE tenant_id = $1 AND name = $2 AND basis = $3
             AND coalesce(expires_at > now() + interval '1 day', true)`,
    values: [tenantId, name, basis],
  }
  const [[row]] = await database.batch<[{ client: string }[]]>(tenantId, [find])
  return row?.client
}

export interface NewClient {
  readonly basis: string
  /** The sealed registration. */
  readonly client: string
  /** Seconds since 1970; undefined when the client's secret does not expire. */
  readonly expiresAt: number | undefined
}

/** Stores the client registration of an entry, in place of a former one. */
export async function storeClient(database: Database, tenantId: string, name: string, of: NewClient): Promise<void> {
  const store = {
    text: `INSERT INTO mcp_oauth_clients (tenant_id, name, basis, client, expires_at) VALUES ($1, $2, $3, $4, to_timestamp($5))
           ON CONFLICT (tenant_id, name) DO UPDATE SET basis = excluded.basis, client = excluded.client,
             expires_at = excluded.expires_at`,
    values: [tenantId, name, of.basis, of.client, of.expiresAt ?? null],
  }
  await database.batch(tenantId, [store])
}

/** Deletes a registration that the authorization server no longer knows. A newer registration of another process stays. */
export async function dropClient(database: Database, tenantId: string, name: string, client: string): Promise<void> {
  const drop = {
    text: 'DELETE FROM mcp_oauth_clients WHERE tenant_id = $1 AND name = $2 AND client = $3',
    values: [tenantId, name, client],
  }
  await database.batch(tenantId, [drop])
}
