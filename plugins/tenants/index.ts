import { definePlugin, maybe } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Database, needsDatabase } from '#contracts/database'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { RunStore } from '#contracts/run-store'
import { RunDispatch } from '#contracts/runs'
import { createRunCanceller, createTenantService } from './service.ts'
import { limitRoutes, tenantRoutes } from './routes.ts'

/** The tenants of the installation, managed by the admins of one of them, and what each may have. */
export default definePlugin({
  name: 'tenants',
  errors: limitErrors,
  requires: {
    guard: ApiGuard,
    database: Database,
    store: maybe(RunStore),
    runs: maybe(RunDispatch),
    limits: maybe(TenantLimits),
  },
  async setup({ deps, log, routes, stopping, onStop }) {
    const { guard, database, store, runs, limits } = deps
    const canceller = store && runs && createRunCanceller(store, runs, log, stopping)
    if (canceller) onStop(() => canceller.settled())
    const service = createTenantService(database, limits, (tenantId) => canceller?.cancelAll(tenantId))
    routes('conductor', async (app) => {
      guard.protect(app)
      limitRoutes(app, guard, service)
    })
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      tenantRoutes(app, guard, service)
    })
    return {}
  },
})
