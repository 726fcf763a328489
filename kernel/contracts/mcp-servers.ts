import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/** An external MCP server of a profile, resolved: where it is and what to send to it. */
export const McpServer = Type.Object({
  /** The name that the profile uses; it is part of the names of the server's tools. */
  name: Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' }),
  /** The URL of its streamable HTTP endpoint. */
  url: Type.String(),
  /** Headers to send. They may hold credentials, so they are never logged and never in an event. */
  headers: Type.Optional(Type.Record(Type.String(), Type.String())),
})
export type McpServer = Static<typeof McpServer>

/** The MCP servers that profiles may name. */
export interface McpServers {
  /** Returns the names that a tenant may not use. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** Those that a tenant may use, sorted. */
  names(tenantId: string): Promise<readonly string[]>
  /** The secrets that headers of these servers refer to and the tenant does not have. */
  unknownSecrets(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /**
   * Called for each run, so that a changed credential holds from the next run on. Names that no longer exist, and those that the tenant
   * may not use any more, are left out. Secrets in headers are plain text now; rejects as `Secrets.headers` does.
   */
  resolve(tenantId: string, names: readonly string[]): Promise<readonly McpServer[]>
}
export const McpServers = capability<McpServers>('conductor.mcp-servers')
