import { definePlugin, maybe } from '#kernel'
import { ApiGuard, KeyIssuer } from '#contracts/auth'
import { Database, needsDatabase } from '#contracts/database'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { Retention, retentionErrors } from '#contracts/retention'
import { RunStore } from '#contracts/run-store'
import { RunDispatch } from '#contracts/runs'
import { createRunCanceller, createTenantService } from './service.ts'
import { limitRoutes, tenantRoutes } from './routes.ts'

/** The tenants of the installation and the limits of each. The admins of one tenant, the operators, manage them. */
export default definePlugin({
  name: 'tenants',
  errors: [limitErrors, retentionErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    store: maybe(RunStore),
    runs: maybe(RunDispatch),
    limits: maybe(TenantLimits),
    retention: maybe(Retention),
    issuer: maybe(KeyIssuer),
  },
  async setup({ deps, log, routes, stopping, onStop }) {
    const { guard, database, store, runs, limits, retention, issuer } = deps
    const canceller = store && runs && createRunCanceller(store, runs, log, stopping)
    if (canceller) onStop(() => canceller.settled())
    const onDeleted = (tenantId: string): void => canceller?.cancelAll(tenantId)
    const service = createTenantService({ database, limits, retention, issuer, onDeleted })
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
