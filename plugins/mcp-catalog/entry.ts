import { type HeaderMap, secretOf, secretsIn } from '#contracts/secrets'
import type { CreateEntry, EntryView, OAuth } from './schema.ts'

/** The stored fields of a tenant's entry, without its name and whether it is active. */
export type EntryDocument = Omit<CreateEntry, 'name' | 'active' | 'managedBy'>

/** An MCP server in the catalog. */
export interface Entry {
  readonly name: string
  readonly url: string
  readonly transport: 'streamable-http' | 'sse'
  readonly headers?: HeaderMap
  readonly oauth?: OAuth
  readonly allowedTools?: readonly string[]
  readonly toolPolicy: 'trust' | 'review'
  readonly description?: string
  readonly active: boolean
  readonly managedBy: EntryView['managedBy']
}

export const entryOf = (
  name: string,
  { transport = 'streamable-http', toolPolicy = 'trust', ...document }: EntryDocument,
  active: boolean,
  managedBy: Entry['managedBy'],
): Entry => ({ ...document, name, transport, toolPolicy, active, managedBy })

/** The address of an entry's server. A discovery is valid only for the address at which it was made. */
export const addressOf = ({ transport, url }: Pick<Entry, 'transport' | 'url'>): string => `${transport} ${url}`

/** The names of all secrets that are sent for an entry. `invalid_ref` (400) for `secret://` without a name. */
export function secretsOf({ headers = {}, oauth }: Pick<Entry, 'headers' | 'oauth'>): readonly string[] {
  const client = oauth?.clientSecret === undefined ? undefined : secretOf(oauth.clientSecret)
  return [...new Set([...Object.values(headers).flatMap(secretsIn), ...(client === undefined ? [] : [client])])]
}

/** Whether runs may have a tool of this name at all. */
export const isAllowed = ({ allowedTools }: Pick<Entry, 'allowedTools'>, tool: string): boolean =>
  !allowedTools || allowedTools.includes(tool)

/** Whether a URL is at a host that the entry itself names. */
export function isNamedBy({ url, oauth }: Pick<Entry, 'url' | 'oauth'>, asked: string): boolean {
  const named = [url, oauth?.grant === 'client_credentials' ? oauth.tokenUrl : oauth?.issuer]
  const hostOf = (text: string | undefined): string | undefined =>
    text !== undefined && URL.canParse(text) ? new URL(text).host : undefined
  return named.some((text) => hostOf(text) !== undefined && hostOf(text) === hostOf(asked))
}

/** Whose account authenticates the requests: `none` unless somebody has to connect one. */
export const accountOf = ({ oauth }: Pick<Entry, 'oauth'>): 'none' | 'tenant' | 'user' =>
  oauth?.grant === 'authorization_code' ? (oauth.connection ?? 'tenant') : 'none'

/** The entry without its OAuth settings, for a caller who brings an account. Its other headers are still sent. */
export function withoutAccount(entry: Entry): Entry {
  const { oauth: _, ...rest } = entry
  return rest
}

/** The name under which the accounts of entries are kept. */
export const mcpProvider = 'mcp'
