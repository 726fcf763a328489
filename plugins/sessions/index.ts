import { definePlugin } from '#kernel'
import { ApiGuard, InternalGuard } from '#contracts/auth'
import { Kv } from '#contracts/kv'
import { RunStore } from '#contracts/run-store'
import { Fleet } from '#contracts/runner'
import { RunDispatch } from '#contracts/runs'
import { leaseRoutes, publicSessionRoutes, sessionRoutes, sessionStreamRoutes } from './routes.ts'
import { createLeaseService, createSessionService, sessionErrors } from './service.ts'

/**
 * Sessions as their tenant sees them: list, read, follow across runs, end, and what they hold on runners (sandbox workers and VirtualFS leases).
 * Runs create sessions. Specification 4.7.
 */
export default definePlugin({
  name: 'sessions',
  errors: sessionErrors,
  requires: {
    api: ApiGuard,
    internal: InternalGuard,
    store: RunStore,
    fleet: Fleet,
    dispatch: RunDispatch,
    kv: Kv,
  },
  async setup({ deps: { api, internal, store, fleet, dispatch, kv }, log, routes }) {
    const service = createSessionService(store, fleet, log)
    const leases = createLeaseService(store, fleet, log)
    routes('conductor', async (app) => {
      api.protect(app)
      sessionRoutes(app, service, { guard: api, who: { read: 'member', write: 'admin' } })
      publicSessionRoutes(app, service, store, api)
      sessionStreamRoutes(app, api, { store, dispatch, kv })
      leaseRoutes(app, api, leases)
    })
    routes('internal', async (app) => {
      internal.protect(app)
      sessionRoutes(app, service, { guard: internal, who: { read: 'service', write: 'service' } })
    })
    return {}
  },
})
