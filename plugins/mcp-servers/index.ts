import { type Static, Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { type McpServer, McpServers } from '#contracts/mcp-servers'

const Server = Type.Object(
  {
    url: Type.String({
      pattern: '^https?://.+$',
      expects: 'an http or https URL',
      description: 'Where the server speaks streamable HTTP, as sidecars reach it.',
    }),
    headers: Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        description:
          'Sent with every request, e.g. `authorization: Bearer ${GITHUB_TOKEN}`. One that comes out empty is left out.',
      }),
    ),
  },
  { additionalProperties: false },
)

const ServerTable = Type.Record(Type.String(), Server, {
  default: {},
  description: 'Servers by the name that profiles give them: up to 64 letters, digits, hyphens and underscores.',
})
type ServerTable = Static<typeof ServerTable>

/** The external MCP servers that profiles may name, from the table in the role file; every tenant's profiles may name them. */
export default definePlugin({
  name: 'mcp-servers',
  config: Settings({ servers: ServerTable }),
  provides: { servers: McpServers },
  setup: async ({ config }) => ({ servers: createServers(config.servers) }),
})

/** A server's name becomes part of its tools' names, which model servers accept in these characters. */
const nameForm = /^[A-Za-z0-9_-]{1,64}$/

function createServers(table: ServerTable): McpServers {
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
