import { definePlugin } from '#kernel'
import { RunnerCore, RunnerSessions } from '#contracts/runner'
import { Sidecars } from '#contracts/sidecar'
import { Toolkit } from '#contracts/tools'
import { acceptLinks, trusted } from '#kit'
import { runnerRoutes, runRoutes, sessionRoutes } from './routes.ts'

/** The runner's wire API. Specification 4.22: a trusted network, so the tenant of a call is a plain header. */
export default definePlugin({
  name: 'runner-wire',
  requires: { core: RunnerCore, sessions: RunnerSessions, sidecars: Sidecars, toolkit: Toolkit },
  async setup(ctx) {
    ctx.routes('runner', async (app) => {
      acceptLinks(app, trusted)
      const runner = { ...ctx.deps, log: ctx.log }
      runnerRoutes(app, runner)
      sessionRoutes(app, runner)
      runRoutes(app, runner)
    })
    return {}
  },
})
