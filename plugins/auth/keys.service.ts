import { conflict, forbidden, invalidField, notFound, unauthorized } from '#kernel'
import { type Caller, type KeyRotation, roleAtLeast, type TenantRole, type Tokens } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import type { Page } from '#contracts/paging'
import { networksOf } from '#kit'
import { bootstrapId } from './bootstrap.ts'
import { authErrors } from './errors.ts'
import { mintedPermissions } from './mcp-permissions.ts'
import type { IssueBody, IssuedKey } from './keys.schema.ts'
import {
  countMinted,
  findMinter,
  insertKey,
  isBelow,
  listKeys,
  lockKeys,
  type Minter,
  replaceKey,
  revokeLine,
  roleOfKey,
} from './keys.store.ts'

const roleTooHigh = (role: string) => forbidden({ message: `A key may grant at most its own role, not '${role}'.` })
const ownersKey = () => forbidden({ message: "Only owners may revoke an owner's key." })
const notBelow = () => forbidden({ message: 'A key may replace itself and those that it minted, and no other.' })
const replacedAlready = () =>
  conflict({ message: 'This key was replaced or revoked, or it expired; only a key that works can be replaced, once.' })
export const unknownTenant = (id: string) => authErrors.unknownTenant({ message: `There is no tenant '${id}'.` })
const expiryPassed = () => invalidField('body/expiresAt', 'must be a time in the future')
const expiryTooLate = ({ at, why }: Latest) =>
  invalidField('body/expiresAt', `must not be after ${at.toISOString()}, ${why}`)

export interface KeyRequest {
  readonly tenantId: string
  readonly role: TenantRole
  readonly label: string
  /** The name of a command. */
  readonly createdBy: string
}

/** Mints and stores a key that no other one minted. Whether the caller may grant `role` is for the caller to have checked. */
export function issueKey(database: Database, tokens: Tokens, request: KeyRequest): Promise<IssuedKey> {
  const { tenantId, ...key } = request
  const { token, ...minted } = mint(tokens)
  return database.tenant(tenantId, async (tx) => {
    const stored = await insertKey(tx, { ...key, ...minted, expiresAt: undefined, allowedAddresses: undefined })
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
  /** Undefined: those where nobody has said otherwise. */
  readonly limits: (Pick<TenantLimits, 'of'> & Partial<Pick<TenantLimits, 'stored'>>) | undefined
  /** How long a key may live, in milliseconds; undefined: for ever. */
  readonly maxLifetimeMs: number | undefined
}

/** A key with its entries in indexes, beside its label. Nothing but this bounds how many admins mint. */
const bytesOfKey = 400

export function createApiKeyService({ database, tokens, limits, maxLifetimeMs }: KeyServiceOptions) {
  return {
    /** The new key has the minter's role unless a lower one is asked for, and its bounds. Specification 2.3. */
    async issue({ tenantId, role: own, keyId }: Caller, body: IssueBody): Promise<IssuedKey> {
      const role = body.role ?? own
      if (!roleAtLeast(own, role)) throw roleTooHigh(role)
      const { token, ...minted } = mint(tokens)
      const { keysPerMember: most } = limits?.of(tenantId) ?? defaultLimits
      limits?.stored?.admit(tenantId)
      const issued = await database.tenant(tenantId, async (tx) => {
        await lockKeys(tx)
        const minter = keyId === bootstrapId ? unbound : await findMinter(tx, keyId)
        // It was revoked since the request was let in.
        if (!minter) throw unauthorized()
        if (own === 'member' && (await countMinted(tx, keyId)) >= most) throw overLimit('keysPerMember', most)
        const key = await insertKey(tx, {
          ...minted,
          role,
          label: body.label,
          createdBy: keyId,
          expiresAt: expiryOf(body.expiresAt, latestOf(minter, maxLifetimeMs)),
          allowedAddresses: body.allowedAddresses
            ? networksOf(body.allowedAddresses, minter.allowedAddresses)
            : (minter.allowedAddresses ?? undefined),
          mcp: mintedPermissions(body, minter.mcp),
        })
        if (!key) throw unknownTenant(tenantId)
        return { ...key, token }
      })
      limits?.stored?.add(tenantId, bytesOfKey + body.label.length)
      return issued
    },
    /** As `KeyIssuer` says. */
    async expiryFor({ tenantId, keyId }: Caller, asked: string | undefined): Promise<Date | undefined> {
      const minter = keyId === bootstrapId ? unbound : await database.tenant(tenantId, (tx) => findMinter(tx, keyId))
      if (!minter) throw unauthorized()
      return expiryOf(asked, latestOf(minter, maxLifetimeMs))
    },
    /** The new key has all that the old one has, and bounds no more than it did: its holder gains nothing but another token. ADR 55. */
    async rotate(caller: Caller, id: string, { graceSeconds }: KeyRotation): Promise<IssuedKey> {
      if (!keyIdForm.test(id)) throw notFound()
      const { token, ...minted } = mint(tokens)
      return database.tenant(caller.tenantId, async (tx) => {
        await lockKeys(tx)
        const own = id === caller.keyId
        if ((await roleOfKey(tx, id, own ? undefined : sightOf(caller))) === undefined) throw notFound()
        if (!own && !(await isBelow(tx, id, caller.keyId))) throw notBelow()
        const key = await replaceKey(tx, id, minted, graceSeconds)
        if (!key) throw replacedAlready()
        return { ...key, token }
      })
    },
    list: (caller: Caller, page: Page) => listKeys(database, caller.tenantId, sightOf(caller), page),
    /** Revokes a key with all that it minted; resolves to the ids of the others. Specification 4.5, ADR 50. */
    async revoke(caller: Caller, id: string): Promise<string[]> {
      if (!keyIdForm.test(id)) throw notFound()
      return database.tenant(caller.tenantId, async (tx) => {
        await lockKeys(tx)
        const role = await roleOfKey(tx, id, sightOf(caller))
        if (role === undefined) throw notFound()
        if (!roleAtLeast(caller.role, role)) throw ownersKey()
        return (await revokeLine(tx, id)).filter((one) => one !== id)
      })
    },
  }
}
export type ApiKeyService = ReturnType<typeof createApiKeyService>

/** The bootstrap key ends with its first owner, whose key must not end with it. */
const unbound: Minter = { expiresAt: null, allowedAddresses: null }

// No other text is the id of a key, and PostgreSQL would refuse some of it with an error.
const keyIdForm = /^tak_[0-9a-z]{1,64}$/

/** Members see and revoke only what they minted. Specification 2.3. */
const sightOf = ({ role, keyId }: Caller): string | undefined => (roleAtLeast(role, 'admin') ? undefined : keyId)

interface Latest {
  readonly at: Date
  readonly why: string
}

/** When a key that `minter` mints expires at the latest. */
function latestOf({ expiresAt }: Minter, maxLifetimeMs: number | undefined): Latest | undefined {
  const ends: Latest[] = []
  if (expiresAt !== null) ends.push({ at: new Date(expiresAt), why: 'when the key that mints it expires' })
  if (maxLifetimeMs !== undefined) {
    ends.push({ at: new Date(Date.now() + maxLifetimeMs), why: 'because keys of this server live no longer' })
  }
  return ends.sort((a, b) => a.at.getTime() - b.at.getTime())[0]
}

/** The latest where nobody asked for less. What was asked for is granted or refused, and never cut. */
function expiryOf(asked: string | undefined, latest: Latest | undefined): Date | undefined {
  if (asked === undefined) return latest?.at
  const time = new Date(asked)
  // NaN for a day that does not exist: it is not greater than now.
  if (!(time.getTime() > Date.now())) throw expiryPassed()
  if (latest && time > latest.at) throw expiryTooLate(latest)
  return time
}
