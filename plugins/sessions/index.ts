import { definePlugin, maybe } from '#kernel'
import { ApiGuard, InternalGuard } from '#contracts/auth'
import { RunStore } from '#contracts/run-store'
import { RunnerPool } from '#contracts/runner'
import { publicSessionRoutes, sessionRoutes } from './routes.ts'
import { createSessionService } from './service.ts'

/** Sessions as their tenant sees them: list, look at, end. Runs create them. */
export default definePlugin({
  name: 'sessions',
  requires: { store: RunStore, runners: RunnerPool, api: maybe(ApiGuard), internal: maybe(InternalGuard) },
  async setup(ctx) {
    const { store, runners, api, internal } = ctx.deps
    const service = createSessionService(store, runners, ctx.log)
    if (api) {
      ctx.routes('conductor', async (app) => {
        api.protect(app)
        sessionRoutes(app, service, { guard: api, who: { read: 'member', write: 'admin' } })
        publicSessionRoutes(app, service, store, api)
      })
    }
    if (internal) {
      ctx.routes('internal', async (app) => {
        internal.protect(app)
        sessionRoutes(app, service, { guard: internal, who: { read: 'service', write: 'service' } })
      })
    }
    return {}
  },
})
