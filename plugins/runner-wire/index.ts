import { definePlugin } from '#kernel'
import { RunnerCore, RunnerSessions } from '#contracts/runner'
import { Sidecars } from '#contracts/sidecar'
import { Toolkit } from '#contracts/tools'
import { broadcastRoutes } from './broadcast.routes.ts'
import { delegationRoutes } from './delegation.routes.ts'
import { infoRoutes } from './info.routes.ts'
import { leaseRoutes } from './lease.routes.ts'
import { poolRoutes } from './pool.routes.ts'
import { profileRoutes } from './profile.routes.ts'
import { runRoutes } from './run.routes.ts'
import { sessionRoutes } from './session.routes.ts'
import { stateRoutes } from './state.routes.ts'
import { toolkitRoutes } from './toolkit.routes.ts'

/** The runner's wire API. Specification 4.22: a trusted network, so the tenant of a call is a plain header. */
export default definePlugin({
  name: 'runner-wire',
  requires: { core: RunnerCore, sessions: RunnerSessions, sidecars: Sidecars, toolkit: Toolkit },
  async setup(ctx) {
    const { core, sessions, sidecars, toolkit } = ctx.deps
    ctx.routes('runner', async (app) => {
      infoRoutes(app, core, sessions, sidecars)
      profileRoutes(app, core)
      poolRoutes(app, core)
      broadcastRoutes(app, core)
      sessionRoutes(app, core, sessions)
      stateRoutes(app, core, ctx.log)
      runRoutes(app, core)
      toolkitRoutes(app, sessions, toolkit)
      delegationRoutes(app, core, sessions)
      leaseRoutes(app, core)
    })
    return {}
  },
})
