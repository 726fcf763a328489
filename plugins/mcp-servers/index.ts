import { definePlugin, Settings } from '#kernel'
import { McpServers } from '#contracts/mcp-servers'
import { ServerTable } from './schema.ts'
import { createServers } from './servers.ts'

/** The external MCP servers that profiles may name, from the table in the role file; every tenant's profiles may name them. */
export default definePlugin({
  name: 'mcp-servers',
  config: Settings({ servers: ServerTable }),
  provides: { servers: McpServers },
  setup: async ({ config }) => ({ servers: createServers(config.servers) }),
})
