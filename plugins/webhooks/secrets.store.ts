import type { Database } from '#contracts/database'

/** How long messages carry the signature of a replaced secret as well: receivers change theirs meanwhile. */
const overlapHours = 24

interface Row {
  version: number
  ref: string | null
  previous_ref: string | null
  previous_until: string | null
}

/** How a tenant's messages are signed. Version 1, derived, until it changes something. */
export interface SigningState {
  readonly version: number
  /** The tenant's own secret, by reference; null: derived from the version. */
  readonly ref: string | null
  /** The same of the version before. */
  readonly previousRef: string | null
  /** ISO time until which the version before still signs; null when there is none. */
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

/** The next version: a secret of the tenant's own, or a derived one. */
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
