import type { Caller, KeyIssuer, KeyRotation, Tokens } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { Page } from '#contracts/paging'
import { keyOver, unknownKey } from './errors.ts'
import { insertKey, listKeys, replaceKey, revokeKey } from './keys.store.ts'
import type { IssuedKey, KeyBody } from './schema.ts'
import { found } from './service.ts'

interface AgentKeyOptions {
  readonly database: Database
  readonly tokens: Tokens
  readonly issuer: Pick<KeyIssuer, 'expiryFor'>
}

// No other text is the id of a key, and PostgreSQL would refuse some of it with an error.
const keyIdForm = /^key_[0-9a-z]{1,64}$/

/** The keys of published agents. Specification 2.2, 4.4. */
export function createAgentKeyService({ database, tokens, issuer }: AgentKeyOptions) {
  const mint = () => {
    const token = tokens.mint()
    return { id: newId('key'), token, hash: tokens.hash('ao:pub-key:v1', token) }
  }
  return {
    /** The key expires with that of the caller at the latest: ADR 55. */
    async issue(caller: Caller, profile: string, { label, expiresAt: asked }: KeyBody): Promise<IssuedKey> {
      const { token, ...minted } = mint()
      const expiresAt = await issuer.expiryFor(caller, asked)
      const key = await insertKey(database, caller.tenantId, profile, { ...minted, label, expiresAt })
      return { ...found(key), token }
    },
    async rotate(caller: Caller, profile: string, id: string, { graceSeconds }: KeyRotation): Promise<IssuedKey> {
      if (!keyIdForm.test(id)) throw unknownKey()
      const { token, ...minted } = mint()
      const latest = await issuer.expiryFor(caller, undefined)
      const key = await replaceKey(database, caller.tenantId, { profile, id, latest, graceSeconds }, minted)
      if (key === 'over') throw keyOver()
      if (key === undefined) throw unknownKey()
      return { ...key, token }
    },
    list: async (tenantId: string, profile: string, page: Page) =>
      found(await listKeys(database, tenantId, profile, page)),
    async revoke(tenantId: string, profile: string, id: string): Promise<void> {
      if (!keyIdForm.test(id) || !(await revokeKey(database, tenantId, profile, id))) throw unknownKey()
    },
  }
}
export type AgentKeyService = ReturnType<typeof createAgentKeyService>
