import type { Database } from '#contracts/database'

/** How long messages also carry the signature of a replaced secret, so that receivers have time to change theirs. */
const overlapHours = 24

interface Row {
  version: number
  ref: string | null
  previous_ref: string | null
  previous_until: string | null
}

/** How messages of a tenant are signed. Version 1 is derived and applies until the tenant changes its secret. */
export interface SigningState {
  readonly version: number
  /** Reference to the tenant's own secret (`secret://<name>`). Null: the secret is derived from the version. */
  readonly ref: string | null
  /** `ref` of the previous version. */
  readonly previousRef: string | null
  /** ISO time until which the previous version also signs. Null: no previous version signs. */
  readonly previousUntil: string | null
}

const columns = `version, ref, previous_ref, CASE WHEN rotated_at > now() - interval '${overlapHours} hours'
  THEN rotated_at + interval '${overlapHours} hours' END AS previous_until`

const first: SigningState = { version: 1, ref: null, previousRef: null, previousUntil: null }
const toState = (row: Row): SigningState => ({
  version: row.version,
  ref: row.ref,
  previousRef: row.previous_ref,
  previousUntil: row.previous_until,
})

export async function currentState(database: Database, tenantId: string): Promise<SigningState> {
  const find = {
    name: 'webhooks-secret',
    text: `SELECT ${columns} FROM webhook_secrets WHERE tenant_id = $1`,
    values: [tenantId],
  }
  const [rows] = await database.batch<[Row[]]>(tenantId, [find])
  return rows[0] ? toState(rows[0]) : first
}

/** Stores the next version: with a reference to the tenant's own secret, or derived (null). */
export async function rotate(database: Database, tenantId: string, ref: string | null): Promise<SigningState> {
  const upsert = {
    text: `INSERT INTO webhook_secrets (tenant_id, version, ref) VALUES ($1, 2, $2)
           ON CONFLICT (tenant_id) DO UPDATE SET version = webhook_secrets.version + 1, rotated_at = now(),
             ref = excluded.ref, previous_ref = webhook_secrets.ref
           RETURNING ${columns}`,
    values: [tenantId, ref],
  }
  const [rows] = await database.batch<[Row[]]>(tenantId, [upsert])
  return toState(rows[0]!)
}
