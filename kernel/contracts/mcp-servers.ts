import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/** An external MCP server of a profile, resolved: where it is and what to send to it. */
export const McpServer = Type.Object({
  /** The name that the profile uses; it is part of the names of the server's tools. */
  name: Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' }),
  /** The URL of its endpoint, which speaks streamable HTTP unless `transport` says otherwise. */
  url: Type.String(),
  transport: Type.Optional(Type.Literal('sse')),
  /** Headers to send. They may hold credentials, so they are never logged and never in an event. */
  headers: Type.Optional(Type.Record(Type.String(), Type.String())),
  /**
   * Which addresses may be connected to, whatever its name resolves to: those of the open internet, or those of private networks as
   * well. Any when absent.
   */
  addresses: Type.Optional(Type.Union([Type.Literal('public'), Type.Literal('network')])),
  /** The only tools that the run may see and call; with a digest only as long as their definition has it. All when absent. */
  tools: Type.Optional(Type.Array(Type.Object({ name: Type.String(), digest: Type.Optional(Type.String()) }))),
})
export type McpServer = Static<typeof McpServer>

/** An MCP server of a profile that a run has to do without. */
export const UnavailableMcpServer = Type.Object({ server: Type.String(), message: Type.String() })
export type UnavailableMcpServer = Static<typeof UnavailableMcpServer>

/** What the names of a profile stand for at the beginning of an attempt. */
export interface ResolvedMcpServers {
  readonly servers: readonly McpServer[]
  readonly unavailable: readonly UnavailableMcpServer[]
}

/** The MCP servers that profiles may name. */
export interface McpServers {
  /** Returns the names that a tenant may not use: they do not exist or are inactive. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** Those that a tenant may use, sorted; the first hundred. */
  names(tenantId: string): Promise<readonly string[]>
  /** The secrets that these servers are sent and the tenant does not have. */
  unknownSecrets(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /**
   * Called for each attempt of a run, so that a changed credential holds from the next one on. Secrets in headers are plain text now;
   * rejects as `Secrets.headers` does. A server that is gone, inactive or without a token is among the unavailable ones.
   */
  resolve(tenantId: string, names: readonly string[]): Promise<ResolvedMcpServers>
}
export const McpServers = capability<McpServers>('conductor.mcp-servers')
