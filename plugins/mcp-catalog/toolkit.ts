import {
  type AppCaller,
  appErrors,
  type AppResult,
  sentenceOf,
  type ToolkitInfo,
  type ToolkitProvider,
} from '#contracts/apps'
import { type Database, presentDatabase } from '#contracts/database'
import type { McpServer } from '#contracts/mcp-servers'
import type { ToolSpec } from '#contracts/tools'
import { isAppError, notFound } from '#kernel'
import { type AuthorizationCodes, tokenOf } from './authorization-code.ts'
import type { ConfigEntries } from './config-entries.ts'
import type { Credentials } from './credentials.ts'
import { type Discovery, findDiscovery } from './discoveries.store.ts'
import { type Discoveries, stateOf } from './discovery.ts'
import type { CatalogEndpoint } from './endpoint/routes.ts'
import { accountOf, type Entry, type EntryDocument, entryOf, isAllowed, withoutAccount } from './entry.ts'
import { basisOf } from './tokens.ts'

export interface ToolkitOptions {
  readonly database: Database
  readonly config: ConfigEntries
  readonly credentials: Credentials
  readonly discoveries: Discoveries
  /** Undefined when this role cannot connect accounts. */
  readonly codes: AuthorizationCodes | undefined
  readonly endpoint: Pick<CatalogEndpoint, 'call'>
  addressesOf(tenantId: string, entry: Entry): NonNullable<McpServer['addresses']>
  readonly keepMs: number
}

interface Row {
  readonly name: string
  readonly entry: EntryDocument
  readonly active: boolean
}

/** The active entries of a tenant's catalog as toolkits of the plugin `apps`. */
export function createToolkitProvider(options: ToolkitOptions): ToolkitProvider {
  const { database, config, discoveries, keepMs } = options
  const find = async (tenantId: string, name: string): Promise<Entry | undefined> => {
    const managed = config.find(tenantId, name)
    if (managed) return managed
    const text = 'SELECT name, entry, active FROM mcp_entries WHERE tenant_id = $1 AND name = $2'
    const [[row]] = await database.batch<[Row[]]>(tenantId, [{ text, values: [tenantId, name] }])
    return row && entryOf(row.name, row.entry, row.active, 'user')
  }
  /** Rejects with 403 for an entry that was deleted or is inactive. */
  const active = async (tenantId: string, name: string): Promise<Entry> => {
    const entry = await find(tenantId, name)
    if (!entry?.active) throw appErrors.toolkitNotActive()
    return entry
  }
  const codesOf = (): AuthorizationCodes => {
    if (!options.codes) throw appErrors.appsUnavailable()
    return options.codes
  }
  return {
    async toolkits(tenantId, names) {
      const managed = config.of(tenantId).filter(({ name }) => !names || names.includes(name))
      const own = presentDatabase(database) ? await ownToolkits(database, tenantId, names) : []
      const all = new Map([...own, ...managed.map(infoOf)].map((toolkit) => [toolkit.name, toolkit]))
      return [...all.values()].toSorted((a, b) => (a.name < b.name ? -1 : 1))
    },
    async knownTools(tenantId, toolkit) {
      const entry = await active(tenantId, toolkit)
      const known = await findDiscovery(database, tenantId, entry)
      return known?.tools ? { tools: specsOf(entry, known), old: (known.listedMs ?? Infinity) > keepMs } : undefined
    },
    async tools({ tenantId, toolkit, secret }) {
      const entry = await active(tenantId, toolkit)
      const headers = headersFor(entry, secret)
      if (secret !== undefined && !headers) return undefined
      try {
        if (!headers) return specsOf(entry, await discoveries.current(tenantId, entry))
        await discoveries.ask(tenantId, entry, headers)
        return specsOf(entry, (await findDiscovery(database, tenantId, entry)) ?? never)
      } catch (error) {
        if (headers && isAppError(error) && error.code === 'mcp_unauthorized') return undefined
        throw notAsked(error)
      }
    },
    async call(caller, tool, input) {
      const entry = await active(caller.tenantId, caller.toolkit)
      return call(options, entry, caller, tool, input)
    },
    async begin(connecting) {
      return codesOf().begin(await active(connecting.tenantId, connecting.toolkit), connecting)
    },
    async finish(connecting, keep, answer) {
      return codesOf().finish(await active(connecting.tenantId, connecting.toolkit), connecting, keep, answer)
    },
    async renew({ tenantId, toolkit, secret, signal }) {
      const entry = await find(tenantId, toolkit)
      if (!entry) return { lost: 'failed', reason: 'Its entry in the MCP catalog was deleted.' }
      return codesOf().renew(tenantId, entry, secret, signal)
    },
    async revoke({ tenantId, toolkit, secret, signal }) {
      // The entry may be deleted already. The grant itself names the revocation URL, so a placeholder entry is enough.
      const gone = entryOf(toolkit, { url: 'https://gone.invalid/' }, false, 'user')
      await codesOf().revoke(tenantId, (await find(tenantId, toolkit)) ?? gone, secret, signal)
    },
  }
}

const never: Discovery = { tools: [], listedMs: null, failedMs: null, failure: null, accepted: {} }

const infoOf = (entry: Entry): ToolkitInfo => ({
  name: entry.name,
  ...(entry.description === undefined ? {} : { description: entry.description }),
  connection: accountOf(entry),
})

interface InfoRow {
  readonly name: string
  readonly description: string | null
  readonly grant: string | null
  readonly connection: 'tenant' | 'user' | null
}

async function ownToolkits(
  database: Database,
  tenantId: string,
  names: readonly string[] | undefined,
): Promise<readonly ToolkitInfo[]> {
  const list = {
    text: `SELECT name, entry ->> 'description' AS description, entry #>> '{oauth,grant}' AS "grant",
             entry #>> '{oauth,connection}' AS connection
           FROM mcp_entries WHERE tenant_id = $1 AND active AND ($2::text[] IS NULL OR name = ANY ($2))`,
    values: [tenantId, names ?? null],
  }
  const [rows] = await database.batch<[InfoRow[]]>(tenantId, [list])
  return rows.map(({ name, description, grant, connection }) => ({
    name,
    ...(description === null ? {} : { description }),
    connection: grant === 'authorization_code' ? (connection ?? 'tenant') : 'none',
  }))
}

/** The tools that may be called: allowed by the entry and, with the policy `review`, accepted by an admin. */
const specsOf = (entry: Entry, { tools, accepted }: Discovery): readonly ToolSpec[] =>
  (tools ?? [])
    .filter(({ name, digest }) => stateOf(entry, accepted, name, digest) === 'accepted')
    .map(({ name, title, description, inputSchema }) => ({
      name,
      description: description ?? title ?? name,
      inputSchema: inputSchema as ToolSpec['inputSchema'],
    }))

/** Undefined when the entry leads to another server than the account was connected to: the token must not be sent there. */
function headersFor(entry: Entry, secret: string | undefined): Readonly<Record<string, string>> | undefined {
  if (secret === undefined) return undefined
  const { access, basis } = tokenOf(secret)
  return basis === basisOf(entry) ? { authorization: `Bearer ${access}` } : undefined
}

/** Calls a tool. Undefined when the server refuses the account. */
async function call(
  { database, credentials, endpoint, addressesOf }: ToolkitOptions,
  entry: Entry,
  { tenantId, toolkit, secret, signal }: AppCaller,
  tool: string,
  input: Readonly<Record<string, unknown>>,
): Promise<AppResult | undefined> {
  if (!isAllowed(entry, tool)) throw noTool(tool)
  const digest = entry.toolPolicy === 'review' ? await acceptedDigest(database, tenantId, entry, tool) : undefined
  const account = headersFor(entry, secret)
  if (secret !== undefined && !account) return undefined
  const { headers } = await credentials.of(tenantId, account ? withoutAccount(entry) : entry, signal).catch((error) => {
    throw notAsked(error)
  })
  const server: McpServer = {
    name: toolkit,
    url: entry.url,
    ...(entry.transport === 'sse' ? { transport: entry.transport } : {}),
    headers: { ...headers, ...account },
    addresses: addressesOf(tenantId, entry),
    tools: [{ name: tool, ...(digest === undefined ? {} : { digest }) }],
  }
  const { outcome, result } = await endpoint.call(tenantId, server, tool, { name: tool, input, meta: {}, signal })
  const content = textOf(result.content)
  if (outcome === 'ok' || outcome === 'tool_error') return { ok: outcome === 'ok', content, result }
  if (outcome === 'unauthorized') return undefined
  if (outcome === 'busy') throw appErrors.appBusy()
  const late = outcome === 'cancelled' && (signal.reason as Error | undefined)?.name === 'TimeoutError'
  throw unavailable(late ? 'The app did not answer in time.' : content, undefined)
}

/** The digest of the definition that an admin has accepted. 404 when the tool has not been accepted. */
async function acceptedDigest(database: Database, tenantId: string, entry: Entry, tool: string): Promise<string> {
  const known = await findDiscovery(database, tenantId, entry)
  const digest = known && Object.hasOwn(known.accepted, tool) ? known.accepted[tool] : undefined
  if (digest === undefined) throw heldBack(tool)
  return digest
}

const noTool = (tool: string) => notFound({ message: `The toolkit has no tool '${tool.slice(0, 100)}'.` })
const heldBack = (tool: string) =>
  notFound({ message: `The tool '${tool.slice(0, 100)}' is held back until an admin accepts its definition.` })
/** A failure before the server is asked, such as a missing secret, is not the caller's fault, so it becomes `app_unavailable`. */
const notAsked = (error: unknown): unknown => (isAppError(error) ? unavailable(sentenceOf(error), error) : error)
const unavailable = (message: string, cause: unknown) => appErrors.appUnavailable({ cause, message })

/** The part of an answer that a model can read. Anything but text is replaced by its type in brackets. */
function textOf(content: unknown): string {
  const parts = (Array.isArray(content) ? content : []) as { readonly type?: unknown; readonly text?: unknown }[]
  return parts
    .map(({ type, text }) => (type === 'text' && typeof text === 'string' ? text : `[${String(type)}]`))
    .join('\n')
}
