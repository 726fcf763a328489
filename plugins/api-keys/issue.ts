import type { TenantRole, Tokens } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import { unknownTenant } from './errors.ts'
import type { IssuedKey } from './schema.ts'
import { insertKey } from './store.ts'

export interface KeyRequest {
  readonly tenantId: string
  readonly role: TenantRole
  readonly label: string
  /** Id of the minting key, or the name of a command. */
  readonly createdBy: string
  readonly expiresAt?: Date
}

/** Mints and stores a key of a tenant. Whether the caller may grant `role` is for the caller to have checked. */
export async function issueKey(database: Database, tokens: Tokens, request: KeyRequest): Promise<IssuedKey> {
  const { tenantId, role, label, createdBy, expiresAt } = request
  const token = tokens.mint()
  const hash = tokens.hash('ao:tenant-key:v1', token)
  const key = await insertKey(database, tenantId, { id: newId('tak'), label, role, hash, createdBy, expiresAt })
  if (!key) throw unknownTenant(tenantId)
  return { ...key, token }
}
