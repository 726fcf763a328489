import { type HeaderMap, secretOf, secretsIn } from '#contracts/secrets'
import type { CreateEntry, EntryView, OAuth } from './schema.ts'

/** What is kept of an entry of a tenant, beside its name and whether it is active. */
export type EntryDocument = Omit<CreateEntry, 'name' | 'active' | 'managedBy'>

/** One MCP server as the catalog has it. */
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

/** Whom an entry leads to: what was found at another address says nothing about it. */
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

/** Whose account a server is asked as, if its entry says that somebody has to connect one. */
export const accountOf = ({ oauth }: Pick<Entry, 'oauth'>): 'none' | 'tenant' | 'user' =>
  oauth?.grant === 'authorization_code' ? (oauth.connection ?? 'tenant') : 'none'

/** The entry as somebody asks who brings an account: its other headers are sent as well. */
export function withoutAccount(entry: Entry): Entry {
  const { oauth: _, ...rest } = entry
  return rest
}

/** The name under which the accounts of entries are kept. */
export const mcpProvider = 'mcp'
