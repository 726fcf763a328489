import { conflict, forbidden, invalidField, notFound, unauthorized } from '#kernel'
import { type Caller, type KeyRotation, roleAtLeast, type TenantRole, type Tokens } from '#contracts/auth'
import type { Database, TenantTx } from '#contracts/database'
import { newId } from '#contracts/ids'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import type { Page } from '#contracts/paging'
import { networksOf } from '#kit'
import { bootstrapId } from './bootstrap.ts'
import { authErrors } from './errors.ts'
import { issuedPermissions } from './mcp-permissions.ts'
import type { IssueBody, IssuedKey, KeyMetadata } from './keys.schema.ts'
import {
  countIssued,
  findIssuingKey,
  insertKey,
  isBelow,
  listKeys,
  lockKeys,
  type IssuingKey,
  replaceKey,
  type Revoked,
  revokeLine,
  roleOfKey,
} from './keys.store.ts'

const roleTooHigh = (role: string) => forbidden({ message: `A key may grant at most its own role, not '${role}'.` })
const ownersKey = () => forbidden({ message: "Only owners may revoke an owner's key." })
const notBelow = () => forbidden({ message: 'A key may replace only itself and the keys that it issued.' })
const replacedAlready = () =>
  conflict({
    message: 'This key was replaced or revoked, or it has expired; only a working key can be replaced, once.',
  })
export const unknownTenant = (id: string) => authErrors.unknownTenant({ message: `There is no tenant '${id}'.` })
const expiryPassed = () => invalidField('body/expiresAt', 'must be a time in the future')
const expiryTooLate = ({ at, why }: Latest) =>
  invalidField('body/expiresAt', `must not be after ${at.toISOString()}, ${why}`)

export interface KeyRequest {
  readonly tenantId: string
  readonly role: TenantRole
  readonly label: string
  /** The name of the command, or the operator's key, that issues the key. */
  readonly createdBy: string
  /** Absent: never. */
  readonly expiresAt?: Date | undefined
}

/** Issues and stores a key that depends on no other key. The caller must have checked that `role` may be granted. */
export function issueKey(database: Database, tokens: Tokens, request: KeyRequest): Promise<IssuedKey> {
  const { tenantId, expiresAt, ...key } = request
  const { token, ...issued } = mint(tokens)
  return database.tenant(tenantId, async (tx) => {
    const stored = await insertKey(tx, { ...key, ...issued, expiresAt, allowedAddresses: undefined })
    if (!stored) throw unknownTenant(tenantId)
    return { ...stored, token }
  })
}

function mint(tokens: Tokens) {
  const token = tokens.mint()
  return { id: newId('tak'), token, hash: tokens.hash('ao:tenant-key:v1', token) }
}

export interface KeyServiceOptions {
  readonly database: Database
  readonly tokens: Tokens
  /** Undefined: the default limits. */
  readonly limits: (Pick<TenantLimits, 'of'> & Partial<Pick<TenantLimits, 'stored'>>) | undefined
  /** The longest life of a key in milliseconds. Undefined: keys may live for ever. */
  readonly maxLifetimeMs: number | undefined
}

/**
 * The bytes that a key takes with its index entries. Only the limit on stored bytes restricts how many keys admins issue, and how often anybody
 * replaces one: what a key issued is found by way of its row, so that stays when the key has ended.
 */
const bytesOf = ({ label, allowedAddresses, mcpServers, mcpToolPermissions }: KeyMetadata): number =>
  400 + Buffer.byteLength(JSON.stringify([label, allowedAddresses, mcpServers, mcpToolPermissions]))

export function createApiKeyService({ database, tokens, limits, maxLifetimeMs }: KeyServiceOptions) {
  return {
    /** Issues a key with the issuer's role or a requested lower one, and at most the issuer's rights. Specification 2.3. */
    async issue({ tenantId, role: own, keyId }: Caller, body: IssueBody): Promise<IssuedKey> {
      const role = body.role ?? own
      if (!roleAtLeast(own, role)) throw roleTooHigh(role)
      const { token, ...issued } = mint(tokens)
      const { keysPerMember: most } = limits?.of(tenantId) ?? defaultLimits
      limits?.stored?.admit(tenantId)
      const added = await database.tenant(tenantId, async (tx) => {
        const issuer = await issuerIn(tx, keyId)
        if (own === 'member' && (await countIssued(tx, issuer.id)) >= most) throw overLimit('keysPerMember', most)
        const key = await insertKey(tx, {
          ...issued,
          role,
          label: body.label,
          createdBy: issuer.id,
          expiresAt: expiryOf(body.expiresAt, latestOf(issuer, maxLifetimeMs)),
          allowedAddresses: body.allowedAddresses
            ? networksOf(body.allowedAddresses, issuer.allowedAddresses)
            : (issuer.allowedAddresses ?? undefined),
          mcp: issuedPermissions(body, issuer.mcp),
        })
        if (!key) throw unknownTenant(tenantId)
        return { ...key, token }
      })
      limits?.stored?.add(tenantId, bytesOf(added))
      return added
    },
    /** The first key of a tenant, see `KeyIssuer`. */
    issueOwner(tenantId: string, createdBy: string): Promise<IssuedKey> {
      const expiresAt = latestOf(unbound, maxLifetimeMs)?.at
      return issueKey(database, tokens, { tenantId, role: 'owner', label: 'first owner key', createdBy, expiresAt })
    },
    /** The expiry of a new key, see `KeyIssuer`. */
    async expiryFor(tx: TenantTx, { keyId }: Caller, asked: string | undefined): Promise<Date | undefined> {
      return expiryOf(asked, latestOf(await issuerIn(tx, keyId), maxLifetimeMs))
    },
    /**
     * Replaces a key. The new key has the rights and restrictions of the old one, so its holder gains only another token. It lives no longer than
     * other new keys: otherwise a key from before there was a longest lifetime could be passed on for ever. ADR 55.
     */
    async rotate(caller: Caller, id: string, { graceSeconds }: KeyRotation): Promise<IssuedKey> {
      if (!keyIdForm.test(id)) throw notFound()
      const { token, ...issued } = mint(tokens)
      const added = await database.tenant(caller.tenantId, async (tx) => {
        await lockKeys(tx)
        const own = id === caller.keyId
        if ((await roleOfKey(tx, id, own ? undefined : sightOf(caller))) === undefined) throw notFound()
        if (!own && !(await isBelow(tx, id, caller.keyId))) throw notBelow()
        const latest = latestOf(unbound, maxLifetimeMs)?.at
        const key = await replaceKey(tx, id, { ...issued, latest, graceSeconds })
        if (!key) throw replacedAlready()
        // A key that leaked is replaced also by a tenant that is full. The other holders of its role are all that a leaked key can shut out.
        limits?.stored?.admit(caller.tenantId, caller.role)
        return { ...key, token }
      })
      limits?.stored?.add(caller.tenantId, bytesOf(added))
      return added
    },
    list: (caller: Caller, page: Page) => listKeys(database, caller.tenantId, sightOf(caller), page),
    /**
     * Revokes a key and all keys that it issued, with `agentKeys` also the keys of agents that any of these issued. Resolves to the ids of the other
     * keys, and the number of agents' keys. Specification 4.5, ADR 50, ADR 103.
     */
    async revoke(caller: Caller, id: string, agentKeys: boolean): Promise<Revoked> {
      if (!keyIdForm.test(id)) throw notFound()
      return database.tenant(caller.tenantId, async (tx) => {
        await lockKeys(tx)
        const role = await roleOfKey(tx, id, sightOf(caller))
        if (role === undefined) throw notFound()
        if (!roleAtLeast(caller.role, role)) throw ownersKey()
        const revoked = await revokeLine(tx, id, agentKeys)
        return { ...revoked, ids: revoked.ids.filter((one) => one !== id) }
      })
    },
  }
}
export type ApiKeyService = ReturnType<typeof createApiKeyService>

/** The bounds of a key that issues another one. No key is revoked from now on until the transaction ends. */
async function issuerIn(tx: TenantTx, keyId: string): Promise<IssuingKey> {
  await lockKeys(tx)
  const issuer = keyId === bootstrapId ? unbound : await findIssuingKey(tx, keyId)
  // The issuing key was revoked after the request was authenticated.
  if (!issuer) throw unauthorized()
  return issuer
}

/** The bootstrap key stops working with the first owner key. So the owner key must not inherit any bounds from it. */
const unbound: IssuingKey = { id: bootstrapId, expiresAt: null, allowedAddresses: null }

// No other text is the id of a key. Some texts would make PostgreSQL fail, so they are refused before the query.
const keyIdForm = /^tak_[0-9a-z]{1,64}$/

/** The key whose issued keys the caller may see and revoke: a member only those of its own key, an admin all (undefined). Specification 2.3. */
const sightOf = ({ role, keyId }: Caller): string | undefined => (roleAtLeast(role, 'admin') ? undefined : keyId)

interface Latest {
  readonly at: Date
  readonly why: string
}

/** The latest expiry that a new key may have, and the reason for it. Undefined: the key may live for ever. */
function latestOf({ expiresAt }: IssuingKey, maxLifetimeMs: number | undefined): Latest | undefined {
  const ends: Latest[] = []
  if (expiresAt !== null) ends.push({ at: new Date(expiresAt), why: 'when the key that issues it expires' })
  if (maxLifetimeMs !== undefined) {
    ends.push({ at: new Date(Date.now() + maxLifetimeMs), why: 'because keys of this server live no longer' })
  }
  return ends.sort((a, b) => a.at.getTime() - b.at.getTime())[0]
}

/** A new key gets the latest possible expiry by default. A requested expiry is granted or refused, but never shortened. */
function expiryOf(asked: string | undefined, latest: Latest | undefined): Date | undefined {
  if (asked === undefined) return latest?.at
  const time = new Date(asked)
  // The time of a day that does not exist is NaN, which is not greater than now, so that it is refused here as well.
  if (!(time.getTime() > Date.now())) throw expiryPassed()
  if (latest && time > latest.at) throw expiryTooLate(latest)
  return time
}
