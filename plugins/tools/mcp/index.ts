import { definePlugin, maybe } from '#kernel'
import { RunnerSessions } from '#contracts/runner'
import { WorkerHub, workerTokenErrors } from '#contracts/workers'
import { admission, mcpRoutes } from './endpoint.ts'
import { sessionMcpErrors } from './errors.ts'

/** The MCP endpoint of each session: the platform tools of its toolkit, with the session as their context. It is a plugin of its own: runners need the toolkit, and this needs the runner. */
export default definePlugin({
  name: 'session-mcp',
  errors: [sessionMcpErrors, workerTokenErrors],
  requires: { sessions: RunnerSessions, hub: maybe(WorkerHub) },
  async setup(ctx) {
    const { sessions, hub } = ctx.deps
    ctx.routes('runner', async (app) => mcpRoutes(app, sessions, 'network', admission(sessions, hub, false)))
    // A role without sandbox workers need not have it.
    if (ctx.listeners.includes('workers')) {
      ctx.routes('workers', async (app) => mcpRoutes(app, sessions, 'worker', admission(sessions, hub, true)))
    }
    return {}
  },
})
