import { definePlugin } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { RunStore } from '#contracts/run-store'
import { RunnerPool } from '#contracts/runner'
import { leaseRoutes } from './routes.ts'
import { createLeaseService } from './service.ts'

/** Sandbox workers and VirtualFS sessions of a tenant, gathered from the runners. Specification 4.7. */
export default definePlugin({
  name: 'leases',
  requires: { guard: ApiGuard, store: RunStore, pool: RunnerPool },
  async setup({ deps: { guard, store, pool }, log, routes }) {
    const service = createLeaseService(store, pool, log)
    routes('conductor', async (app) => {
      guard.protect(app)
      leaseRoutes(app, guard, service)
    })
    return {}
  },
})
