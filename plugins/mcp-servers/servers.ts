import type { McpServer, McpServers } from '#contracts/mcp-servers'
import type { ServerTable } from './schema.ts'

/** A part of the names of tools, which model servers take in these letters. */
const nameForm = /^[A-Za-z0-9_-]{1,64}$/

export function createServers(table: ServerTable): McpServers {
  const servers = new Map<string, McpServer>()
  for (const [name, { url, headers }] of Object.entries(table)) {
    if (!nameForm.test(name)) {
      throw new Error(`the MCP server '${name}': a name has up to 64 letters, digits, hyphens and underscores`)
    }
    servers.set(name, { name, url, ...(headers ? { headers } : {}) })
  }
  return {
    unknown: async (_tenantId, names) => names.filter((name) => !servers.has(name)),
    resolve: async (_tenantId, names) => names.flatMap((name) => servers.get(name) ?? []),
  }
}
