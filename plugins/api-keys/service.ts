import { type Caller, roleAtLeast, type Tokens } from '#contracts/auth'
import type { Database } from '#contracts/database'
import type { Page } from '#contracts/paging'
import { expiryPassed, roleTooHigh, unknownKey } from './errors.ts'
import { issueKey } from './issue.ts'
import type { IssueBody, IssuedKey } from './schema.ts'
import { listKeys, revokeKey } from './store.ts'

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
      if (!keyIdForm.test(id) || !(await revokeKey(database, caller.tenantId, sightOf(caller), id))) throw unknownKey()
    },
  }
}
export type ApiKeyService = ReturnType<typeof createApiKeyService>

// Other text cannot be an id of ours, and some of it PostgreSQL would refuse.
const keyIdForm = /^tak_[0-9a-z]{1,64}$/

/** Members see and revoke only what they minted. Specification 2.3. */
const sightOf = ({ role, keyId }: Caller): string | undefined => (roleAtLeast(role, 'admin') ? undefined : keyId)

function futureTime(text: string): Date {
  const time = new Date(text)
  // NaN for a day that does not exist: it is not greater than now.
  if (!(time.getTime() > Date.now())) throw expiryPassed()
  return time
}
