import { createHmac, hkdfSync } from 'node:crypto'

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
