import type { AppAccounts } from '#contracts/apps'
import type { Database } from '#contracts/database'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import { secretErrors, type Secrets } from '#contracts/secrets'
import { invalidField } from '#kernel'
import type { AddressPolicy } from './address.ts'
import type { ConfigEntries } from './config-entries.ts'
import { addressOf, type Entry, entryOf, secretsOf } from './entry.ts'
import { managedByConfig, nameMismatch } from './errors.ts'
import { checkHeaders, keptHeaders } from './headers.ts'
import { entryFrom, type ImportBody } from './import.ts'
import type { CreateEntry, ReplaceEntry } from './schema.ts'
import {
  deleteEntry,
  findEntry,
  forgetServer,
  insertEntry,
  type KnownEntry,
  listEntries,
  lockEntry,
  updateEntry,
} from './store.ts'

export interface CatalogServiceOptions {
  readonly database: Database
  readonly config: ConfigEntries
  readonly addresses: AddressPolicy
  readonly secrets: Secrets | undefined
  readonly limits: Pick<TenantLimits, 'of' | 'stored'> | undefined
  readonly accounts: Pick<AppAccounts, 'redirectUrl' | 'missing'> | undefined
}

export type CatalogService = ReturnType<typeof createCatalogService>

/** The entries of tenants, beside those of the role file. Specification 2.11 and 4.13. */
export function createCatalogService(options: CatalogServiceOptions) {
  const { database, config, addresses, secrets, limits, accounts } = options
  const limitsOf = (tenantId: string) => limits?.of(tenantId) ?? defaultLimits

  const sizeOf = (entry: Entry): number => Buffer.byteLength(JSON.stringify(entry))
  /** Rejects with 400 or 409 for an entry that cannot be stored. */
  const check = async (tenantId: string, entry: Entry): Promise<void> => {
    const { mcpEntryBytes: most } = limitsOf(tenantId)
    if (sizeOf(entry) > most) throw overLimit('mcpEntryBytes', most)
    limits?.stored.admit(tenantId)
    checkHeaders(entry)
    await addresses.check(tenantId, entry.url, 'body/url')
    await checkOAuth(tenantId, entry, addresses, accounts)
    const referred = secretsOf(entry)
    if (referred.length === 0) return
    if (!secrets) throw secretErrors.secretsUnavailable()
    const [missing] = await secrets.unknown(tenantId, referred)
    if (missing !== undefined) {
      throw secretErrors.unknownSecret({
        name: missing,
        message: `The entry is sent the secret '${missing}', which this tenant does not have; create it with POST /api/secrets.`,
      })
    }
  }
  const refuseManaged = (tenantId: string, name: string): void => {
    if (config.find(tenantId, name)) throw managedByConfig(name)
  }
  const find = (tenantId: string, name: string): Promise<KnownEntry> => {
    const managed = config.find(tenantId, name)
    return findEntry(database, tenantId, name, managed ? [managed] : [])
  }
  const create = async (tenantId: string, input: CreateEntry): Promise<KnownEntry> => {
    const { name, active = true, managedBy: _, ...document } = input
    refuseManaged(tenantId, name)
    const entry = entryOf(name, document, active, 'user')
    keptHeaders(entry.headers, undefined)
    await check(tenantId, entry)
    const { mcpEntries: most } = limitsOf(tenantId)
    await database.tenant(tenantId, (tx) => insertEntry(tx, entry, most))
    limits?.stored.add(tenantId, sizeOf(entry))
    return find(tenantId, name)
  }
  return {
    list: (tenantId: string, page: Page): Promise<Listing<KnownEntry>> =>
      listEntries(database, tenantId, config.of(tenantId), page),
    find,
    create,
    /** Creates the entry that a server.json describes. */
    import: (tenantId: string, body: ImportBody): Promise<KnownEntry> =>
      create(tenantId, entryFrom(body, limitsOf(tenantId).mcpEntryBytes)),
    async replace(tenantId: string, name: string, input: ReplaceEntry): Promise<KnownEntry> {
      const { name: named = name, active = true, managedBy: _, ...document } = input
      if (named !== name) throw nameMismatch()
      refuseManaged(tenantId, name)
      const { entry: before } = await find(tenantId, name)
      const headers = keptHeaders(document.headers, before)
      const entry = entryOf(name, { ...document, ...(headers ? { headers } : {}) }, active, 'user')
      // An admin who cannot read a masked value must not redirect it to another host, so a new origin requires the values again.
      if (headers && headers !== document.headers && new URL(before.url).origin !== originOf(entry.url)) {
        throw invalidField('body/headers', 'must have their values written anew when the URL leads to another server')
      }
      await check(tenantId, entry)
      await database.tenant(tenantId, async (tx) => {
        const stored = await lockEntry(tx, name)
        if (addressOf(stored) !== addressOf(entry)) await forgetServer(tx, name)
        await updateEntry(tx, { ...entry, ...(headers ? { headers: keptHeaders(document.headers, stored)! } : {}) })
      })
      return find(tenantId, name)
    },
    async remove(tenantId: string, name: string): Promise<void> {
      refuseManaged(tenantId, name)
      await database.tenant(tenantId, (tx) => deleteEntry(tx, name))
    },
  }
}

const originOf = (url: string): string | undefined => (URL.canParse(url) ? new URL(url).origin : undefined)
const noAccounts = 'To connect accounts, this server needs the plugin `app-connections`.'

/** Rejects with 400 when this server could not store the account: otherwise its owner would connect it in vain. */
async function checkOAuth(
  tenantId: string,
  { oauth }: Entry,
  addresses: AddressPolicy,
  accounts: CatalogServiceOptions['accounts'],
): Promise<void> {
  if (oauth?.grant === 'client_credentials') {
    if (oauth.tokenUrl !== undefined) await addresses.check(tenantId, oauth.tokenUrl, 'body/oauth/tokenUrl')
  } else if (oauth) {
    if (accounts?.redirectUrl === undefined) {
      throw invalidField('body/oauth/grant', `cannot be kept here. ${accounts?.missing ?? noAccounts}`)
    }
    if (oauth.clientSecret !== undefined && oauth.clientId === undefined) {
      throw invalidField('body/oauth/clientId', 'must be there beside `clientSecret`')
    }
    if (oauth.issuer !== undefined) await addresses.check(tenantId, oauth.issuer, 'body/oauth/issuer')
  }
}
