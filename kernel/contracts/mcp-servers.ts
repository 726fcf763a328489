import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/** An external MCP server of a profile, resolved: where it is and what to send to it. */
export const McpServer = Type.Object({
  /** As the profile names it; a prefix of its tools. */
  name: Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' }),
  /** Streamable HTTP. */
  url: Type.String(),
  /** May hold credentials: never logged, never in an event. */
  headers: Type.Optional(Type.Record(Type.String(), Type.String())),
})
export type McpServer = Static<typeof McpServer>

/** The MCP servers that profiles may name. */
export interface McpServers {
  /** Which of the names a tenant may not use. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** At each dispatch, so that a changed credential holds from the next run on. Names that are gone are left out. */
  resolve(tenantId: string, names: readonly string[]): Promise<readonly McpServer[]>
}
export const McpServers = capability<McpServers>('conductor.mcp-servers')
