import { definePlugin, maybe } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Database, needsDatabase } from '#contracts/database'
import { RunStore } from '#contracts/run-store'
import { RunDispatch } from '#contracts/runs'
import { createRunCanceller, createTenantService } from './service.ts'
import { tenantRoutes } from './routes.ts'

/** The tenants of the installation, managed by the admins of one of them. */
export default definePlugin({
  name: 'tenants',
  requires: { guard: ApiGuard, database: Database, store: maybe(RunStore), runs: maybe(RunDispatch) },
  async setup({ deps, log, routes, stopping, onStop }) {
    const { guard, database, store, runs } = deps
    const canceller = store && runs && createRunCanceller(store, runs, log, stopping)
    if (canceller) onStop(() => canceller.settled())
    const service = createTenantService(database, (tenantId) => canceller?.cancelAll(tenantId))
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      tenantRoutes(app, guard, service)
    })
    return {}
  },
})
