import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/** An external MCP server of a profile, resolved to its address and headers. */
export const McpServer = Type.Object({
  /** The name that the profile uses; it is part of the names of the server's tools. */
  name: Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' }),
  /** The URL of its endpoint, which speaks streamable HTTP unless `transport` says otherwise. */
  url: Type.String(),
  transport: Type.Optional(Type.Literal('sse')),
  /** Headers to send. They may hold credentials, so they never appear in a log or an event. */
  headers: Type.Optional(Type.Record(Type.String(), Type.String())),
  /**
   * Which addresses may be connected to, whatever the host name resolves to: the open internet only, or private networks as well. Absent: any
   * address.
   */
  addresses: Type.Optional(Type.Union([Type.Literal('public'), Type.Literal('network')])),
  /** The only tools that the run may see and call. A tool with a digest is permitted only while its definition has that digest. Absent: all tools. */
  tools: Type.Optional(Type.Array(Type.Object({ name: Type.String(), digest: Type.Optional(Type.String()) }))),
})
export type McpServer = Static<typeof McpServer>

/** An MCP server of a profile that is unavailable to a run. */
export const UnavailableMcpServer = Type.Object({ server: Type.String(), message: Type.String() })
export type UnavailableMcpServer = Static<typeof UnavailableMcpServer>

/** The resolved MCP servers of a profile at the beginning of an attempt. */
export interface ResolvedMcpServers {
  readonly servers: readonly McpServer[]
  readonly unavailable: readonly UnavailableMcpServer[]
}

/** The MCP servers that profiles may name. */
export interface McpServers {
  /** Returns the names that a tenant may not use: they do not exist or are inactive. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** The names that a tenant may use, sorted; the first hundred. */
  names(tenantId: string): Promise<readonly string[]>
  /** The secrets that these servers need and the tenant lacks. */
  unknownSecrets(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /**
   * Called for each attempt of a run, so that a changed credential takes effect with the next attempt. Secrets in headers are plain text in the
   * result; rejects as `Secrets.headers` does. A server that is gone, inactive or without a token is listed as unavailable.
   */
  resolve(tenantId: string, names: readonly string[]): Promise<ResolvedMcpServers>
}
export const McpServers = capability<McpServers>('conductor.mcp-servers')
