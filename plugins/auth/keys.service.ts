import { forbidden, invalidField, notFound } from '#kernel'
import { type Caller, roleAtLeast, type TenantRole, type Tokens } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { Page } from '#contracts/paging'
import type { IssueBody, IssuedKey } from './keys.schema.ts'
import { insertKey, listKeys, revokeKey } from './keys.store.ts'
import { authErrors } from './errors.ts'

const roleTooHigh = (role: string) => forbidden({ message: `A key may grant at most its own role, not '${role}'.` })
export const unknownTenant = (id: string) => authErrors.unknownTenant({ message: `There is no tenant '${id}'.` })
const expiryPassed = () => invalidField('body/expiresAt', 'must be a time in the future')

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

export function createApiKeyService(database: Database, tokens: Tokens) {
  return {
    /** The new key has the minter's role unless a lower one is asked for. Specification 2.3. */
    async issue({ tenantId, role: own, keyId }: Caller, body: IssueBody): Promise<IssuedKey> {
      const role = body.role ?? own
      if (!roleAtLeast(own, role)) throw roleTooHigh(role)
      const expiresAt = body.expiresAt === undefined ? undefined : futureTime(body.expiresAt)
      return issueKey(database, tokens, {
        tenantId,
        role,
        label: body.label,
        createdBy: keyId,
        ...(expiresAt ? { expiresAt } : {}),
      })
    },
    list: (caller: Caller, page: Page) => listKeys(database, caller.tenantId, sightOf(caller), page),
    async revoke(caller: Caller, id: string): Promise<void> {
      if (!keyIdForm.test(id) || !(await revokeKey(database, caller.tenantId, sightOf(caller), id))) throw notFound()
    },
  }
}
export type ApiKeyService = ReturnType<typeof createApiKeyService>

// No other text is the id of a key, and PostgreSQL would refuse some of it with an error.
const keyIdForm = /^tak_[0-9a-z]{1,64}$/

/** Members see and revoke only what they minted. Specification 2.3. */
const sightOf = ({ role, keyId }: Caller): string | undefined => (roleAtLeast(role, 'admin') ? undefined : keyId)

function futureTime(text: string): Date {
  const time = new Date(text)
  // NaN for a day that does not exist: it is not greater than now.
  if (!(time.getTime() > Date.now())) throw expiryPassed()
  return time
}
