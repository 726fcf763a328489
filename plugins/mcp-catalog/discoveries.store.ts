import type { Database, TenantTx } from '#contracts/database'
import { storableJson } from '#kit'
import type { McpTool } from '#kit/mcp'
import { addressOf, type Entry } from './entry.ts'
import type { Failure, ServerInfo } from './schema.ts'

/** A tool as its server defined it at the last discovery. */
export interface FoundTool extends McpTool {
  readonly digest: string
}

export interface Found {
  readonly server: ServerInfo
  readonly tools: readonly FoundTool[]
  readonly latencyMs: number
}

/** The last discovery of an entry's server. */
export interface Discovery {
  readonly tools: readonly FoundTool[] | null
  /** Milliseconds since the tools were listed, and since the last failure. */
  readonly listedMs: number | null
  readonly failedMs: number | null
  readonly failure: Failure | null
  /** The digest of the accepted definition of each tool, by the tool's name. */
  readonly accepted: Readonly<Record<string, string>>
}

const since = (column: string): string => `(extract(epoch FROM clock_timestamp() - ${column}) * 1000)::float8`
const columns = `tools, ${since('listed_at')} AS "listedMs", ${since('failed_at')} AS "failedMs", failure, accepted`

/** Undefined when the server has never been asked at the entry's present address. */
export async function findDiscovery(
  database: Database,
  tenantId: string,
  entry: Entry,
): Promise<Discovery | undefined> {
  const find = {
    text: `SELECT ${columns} FROM mcp_discoveries WHERE tenant_id = $1 AND name = $2 AND address = $3`,
    values: [tenantId, entry.name, addressOf(entry)],
  }
  const [[row]] = await database.batch<[Discovery[]]>(tenantId, [find])
  return row
}

/** The tools that differ from the previous discovery. All lists are empty at the first discovery. */
export interface Changes {
  readonly added: readonly string[]
  readonly changed: readonly string[]
  readonly removed: readonly string[]
}

/** Stores a discovery. Resolves to the changes since the previous one and to the growth of the stored tools in bytes. */
export async function storeFound(
  database: Database,
  tenantId: string,
  entry: Entry,
  { server, tools, latencyMs }: Found,
): Promise<{ readonly changes: Changes; readonly grown: number }> {
  return database.tenant(tenantId, async (tx) => {
    const before = await lockDiscovery(tx, entry)
    await tx.query({
      text: `UPDATE mcp_discoveries SET server = $3::jsonb, tools = $4::jsonb, tool_count = $5, latency_ms = $6,
               listed_at = clock_timestamp(), succeeded_at = clock_timestamp()
             WHERE tenant_id = $1 AND name = $2`,
      values: [tenantId, entry.name, storableJson(server), storableJson(tools), tools.length, latencyMs],
    })
    return { changes: changesOf(before.tools, tools), grown: sizeOf(tools) - sizeOf(before.tools ?? []) }
  })
}

const sizeOf = (tools: readonly FoundTool[]): number => Buffer.byteLength(JSON.stringify(tools))

function changesOf(before: readonly FoundTool[] | null, now: readonly FoundTool[]): Changes {
  if (!before) return { added: [], changed: [], removed: [] }
  const known = new Map(before.map(({ name, digest }) => [name, digest]))
  const there = new Set(now.map(({ name }) => name))
  return {
    added: now.filter(({ name }) => !known.has(name)).map(({ name }) => name),
    changed: now.filter(({ name, digest }) => known.has(name) && known.get(name) !== digest).map(({ name }) => name),
    removed: [...known.keys()].filter((name) => !there.has(name)),
  }
}

/** Locks the discovery row of an entry. The row is created if it is missing, and reset if the entry has another address now. */
async function lockDiscovery(tx: TenantTx, entry: Entry): Promise<Discovery> {
  const [tenantId, name, address] = [tx.tenantId, entry.name, addressOf(entry)]
  await tx.query({
    text: `INSERT INTO mcp_discoveries AS d (tenant_id, name, address) VALUES ($1, $2, $3)
           ON CONFLICT (tenant_id, name) DO UPDATE SET address = excluded.address, server = NULL, tools = NULL,
             tool_count = NULL, listed_at = NULL, accepted = '{}', latency_ms = NULL, succeeded_at = NULL,
             failed_at = NULL, failure = NULL
           WHERE d.address <> excluded.address`,
    values: [tenantId, name, address],
  })
  const [row] = await tx.query<Discovery>({
    text: `SELECT ${columns} FROM mcp_discoveries WHERE tenant_id = $1 AND name = $2 FOR UPDATE`,
    values: [tenantId, name],
  })
  return row!
}

export async function storeFailure(
  database: Database,
  tenantId: string,
  entry: Entry,
  failure: Failure,
): Promise<void> {
  await database.tenant(tenantId, async (tx) => {
    await lockDiscovery(tx, entry)
    await tx.query({
      text: `UPDATE mcp_discoveries SET failed_at = clock_timestamp(), failure = $3::jsonb
             WHERE tenant_id = $1 AND name = $2`,
      values: [tenantId, entry.name, JSON.stringify(failure)],
    })
  })
}

/** Replaces the accepted definitions by the result of `accept`, under the lock of the row, so that no concurrent change is lost. */
export async function changeAccepted(
  database: Database,
  tenantId: string,
  entry: Entry,
  accept: (known: Discovery) => Readonly<Record<string, string>>,
): Promise<Discovery> {
  return database.tenant(tenantId, async (tx) => {
    const known = await lockDiscovery(tx, entry)
    const accepted = accept(known)
    await tx.query({
      text: 'UPDATE mcp_discoveries SET accepted = $3::jsonb WHERE tenant_id = $1 AND name = $2',
      values: [tenantId, entry.name, JSON.stringify(accepted)],
    })
    return { ...known, accepted }
  })
}
