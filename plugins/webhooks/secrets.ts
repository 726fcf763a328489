import { createHmac, hkdfSync } from 'node:crypto'
import type { Database } from '#contracts/database'

/** Signing secrets of tenants, derived from the installation's key: none is stored, and none can be read from a backup. */
export interface Secrets {
  /** `whsec_…`, as receivers configure it. */
  secret(tenantId: string, version: number): string
  /** `v1,<base64>`: HMAC-SHA256 over `id.timestamp.body`, one for each version. Standard Webhooks. */
  sign(tenantId: string, versions: readonly number[], id: string, timestamp: number, body: string): string
}

export function createSecrets(key: Buffer): Secrets {
  const derive = (tenantId: string, version: number): Buffer =>
    Buffer.from(hkdfSync('sha256', key, '', `ao/webhook/v1\0${tenantId}\0${version}`, 32))
  return {
    secret: (tenantId, version) => `whsec_${derive(tenantId, version).toString('base64')}`,
    sign: (tenantId, versions, id, timestamp, body) =>
      versions
        .map((version) => createHmac('sha256', derive(tenantId, version)).update(`${id}.${timestamp}.${body}`))
        .map((mac) => `v1,${mac.digest('base64')}`)
        .join(' '),
  }
}

/** How long messages carry the signature of a replaced secret as well: receivers change theirs meanwhile. */
const overlapHours = 24

interface Row {
  version: number
  previous_until: string | null
}

/** Version 1 until a tenant changes its secret. */
export interface SecretVersion {
  readonly version: number
  /** ISO time until which the version before still signs; null when there is none. */
  readonly previousUntil: string | null
}

const columns = `version, CASE WHEN rotated_at > now() - interval '${overlapHours} hours'
  THEN rotated_at + interval '${overlapHours} hours' END AS previous_until`

const first: SecretVersion = { version: 1, previousUntil: null }
const toVersion = (row: Row): SecretVersion => ({ version: row.version, previousUntil: row.previous_until })

export async function currentVersion(database: Database, tenantId: string): Promise<SecretVersion> {
  const find = {
    name: 'webhooks-secret',
    text: `SELECT ${columns} FROM webhook_secrets WHERE tenant_id = $1`,
    values: [tenantId],
  }
  const [rows] = await database.batch<[Row[]]>(tenantId, [find])
  return rows[0] ? toVersion(rows[0]) : first
}

export async function rotate(database: Database, tenantId: string): Promise<SecretVersion> {
  const upsert = {
    text: `INSERT INTO webhook_secrets (tenant_id, version) VALUES ($1, 2)
           ON CONFLICT (tenant_id) DO UPDATE SET version = webhook_secrets.version + 1, rotated_at = now()
           RETURNING ${columns}`,
    values: [tenantId],
  }
  const [rows] = await database.batch<[Row[]]>(tenantId, [upsert])
  return toVersion(rows[0]!)
}
