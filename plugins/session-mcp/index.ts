import { definePlugin } from '#kernel'
import { RunnerSessions } from '#contracts/runner'
import { mcpRoutes } from './routes.ts'

/** The MCP endpoint of each session: the platform tools of its toolkit, with the session as their context. */
export default definePlugin({
  name: 'session-mcp',
  requires: { sessions: RunnerSessions },
  async setup(ctx) {
    ctx.routes('runner', async (app) => mcpRoutes(app, ctx.deps.sessions))
    return {}
  },
})
