import type { Database } from '#contracts/database'
import type { McpServer, McpServers, ResolvedMcpServers, UnavailableMcpServer } from '#contracts/mcp-servers'
import type { Secrets } from '#contracts/secrets'
import { isAppError } from '#kernel'
import type { ConfigEntries } from './config-entries.ts'
import type { Credentials } from './credentials.ts'
import type { Discoveries } from './discovery.ts'
import { addressOf, type Entry, type EntryDocument, entryOf, isAllowed, secretsOf } from './entry.ts'

export interface ResolverOptions {
  /** Undefined in a role without a database, which has only the entries of the role file. */
  readonly database: Database | undefined
  readonly config: ConfigEntries
  readonly secrets: Secrets | undefined
  readonly credentials: Credentials
  readonly discoveries: Pick<Discoveries, 'refresh'>
  addressesOf(tenantId: string, entry: Entry): NonNullable<McpServer['addresses']>
  /** How long a discovery counts as fresh, in ms. */
  readonly keepMs: number
}

interface Row {
  readonly name: string
  readonly entry: EntryDocument | null
  readonly active: boolean | null
  readonly address: string | null
  readonly accepted: Readonly<Record<string, string>> | null
  readonly old: boolean
}

// One statement that looks each entry up by its key, so its cost does not depend on the size of the catalog.
const find = {
  name: 'mcp_resolve',
  text: `SELECT n.name, e.entry, e.active, d.address, d.accepted,
           coalesce(greatest(d.listed_at, d.failed_at) < now() - make_interval(secs => $3 / 1000.0), true) AS old
         FROM unnest($2::text[]) AS n(name)
           LEFT JOIN mcp_entries e ON e.tenant_id = $1 AND e.name = n.name
           LEFT JOIN mcp_discoveries d ON d.tenant_id = $1 AND d.name = n.name`,
}

/** How long a run waits for the access tokens of its servers. */
const patienceMs = 15_000
/** The most names that one message lists. */
const mostNames = 100

/** The view of the catalog for profiles and runs. */
export function createResolver(options: ResolverOptions): McpServers {
  const { database, config, secrets, discoveries } = options
  return {
    async unknown(tenantId, names) {
      const entries = await usable(options, tenantId, names)
      return names.filter((name) => !entries.has(name))
    },
    async names(tenantId) {
      const managed = config.of(tenantId).map(({ name }) => name)
      if (!database) return managed.slice(0, mostNames)
      const own = {
        text: 'SELECT name FROM mcp_entries WHERE tenant_id = $1 AND active ORDER BY name LIMIT $2',
        values: [tenantId, mostNames],
      }
      const [rows] = await database.batch<[{ name: string }[]]>(tenantId, [own])
      return [...new Set([...managed, ...rows.map(({ name }) => name)])].toSorted().slice(0, mostNames)
    },
    async unknownSecrets(tenantId, names) {
      if (!secrets) return []
      const referred = [...(await usable(options, tenantId, names)).values()].flatMap(secretsOf)
      return referred.length > 0 ? secrets.unknown(tenantId, [...new Set(referred)]) : []
    },
    async resolve(tenantId, names): Promise<ResolvedMcpServers> {
      // An entry of the role file that trusts its server needs nothing from the database, so it costs no round trip.
      const kept = names.filter((name) => config.find(tenantId, name)?.toolPolicy !== 'trust')
      const rows = await load(options, tenantId, kept)
      const found = await Promise.all(
        names.map(async (name) => {
          const row = rows.get(name)
          const entry = config.find(tenantId, name) ?? ownOf(row)
          if (!entry) return { server: name, message: gone }
          if (!entry.active) return { server: name, message: inactive }
          if (row && (row.old || row.address !== addressOf(entry))) discoveries.refresh(tenantId, entry)
          return ready(options, tenantId, entry, row)
        }),
      )
      return {
        servers: found.flatMap((one) => ('server' in one ? [] : [one])),
        unavailable: found.flatMap((one) => ('server' in one ? [one] : [])),
      }
    },
  }
}

async function load(
  { database, keepMs }: ResolverOptions,
  tenantId: string,
  names: readonly string[],
): Promise<ReadonlyMap<string, Row>> {
  if (!database || names.length === 0) return new Map()
  const [rows] = await database.batch<[Row[]]>(tenantId, [{ ...find, values: [tenantId, names, keepMs] }])
  return new Map(rows.map((row) => [row.name, row]))
}

/** Those of the named entries that exist and are active for the tenant. */
async function usable(
  options: ResolverOptions,
  tenantId: string,
  names: readonly string[],
): Promise<ReadonlyMap<string, Entry>> {
  const managed = (name: string): Entry | undefined => options.config.find(tenantId, name)
  const own = names.filter((name) => !managed(name))
  const rows = await load(options, tenantId, own)
  const entries = names.map((name) => managed(name) ?? ownOf(rows.get(name)))
  return new Map(entries.flatMap((entry) => (entry?.active ? [[entry.name, entry] as const] : [])))
}

/** The server of an entry as the run gets it, or the reason why the run goes on without it. */
async function ready(
  { credentials, addressesOf }: ResolverOptions,
  tenantId: string,
  entry: Entry,
  row: Row | undefined,
): Promise<McpServer | UnavailableMcpServer> {
  const { name, url, transport } = entry
  const tools = toolsOf(entry, row)
  if (tools?.length === 0) return { server: name, message: entry.toolPolicy === 'review' ? noneAccepted : noneAllowed }
  try {
    const { headers } = await credentials.of(tenantId, entry, AbortSignal.timeout(patienceMs))
    return {
      name,
      url,
      ...(transport === 'sse' ? { transport } : {}),
      ...(Object.keys(headers).length > 0 ? { headers: { ...headers } } : {}),
      addresses: addressesOf(tenantId, entry),
      ...(tools ? { tools } : {}),
    }
  } catch (error) {
    // A failing authorization server is a third party's fault. The run loses these tools, as with an unreachable MCP server, but goes on.
    if (!isAppError(error) || error.code !== 'mcp_token_refused') throw error
    return { server: name, message: error.sentence ?? noToken }
  }
}

const ownOf = (row: Row | undefined): Entry | undefined =>
  row?.entry ? entryOf(row.name, row.entry, row.active === true, 'user') : undefined

/** The only tools that a run may use; undefined for all tools of the server. */
function toolsOf(entry: Entry, row: Row | undefined): McpServer['tools'] {
  if (entry.toolPolicy === 'trust') return entry.allowedTools?.map((name) => ({ name }))
  const accepted = row?.address === addressOf(entry) ? (row.accepted ?? {}) : {}
  return Object.entries(accepted).flatMap(([name, digest]) => (isAllowed(entry, name) ? [{ name, digest }] : []))
}

const gone = 'There is no MCP server of this name any more.'
const inactive = 'The entry of this MCP server is inactive.'
const noneAccepted = 'None of its tools has been accepted; an admin does so with POST /api/mcp/catalog/{name}/accept.'
const noneAllowed = 'Its entry allows no tool.'
const noToken = 'No access token could be got for it.'
