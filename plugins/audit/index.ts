import { definePlugin } from '#kernel'
import { AuditedWrites } from '#contracts/audit'
import { ApiGuard } from '#contracts/auth'
import { Database, needsDatabase } from '#contracts/database'
import { auditRoutes } from './routes.ts'
import { createAuditTrail } from './trail.ts'

/** The append-only log of administrative writes: kept for the guard, read by admins. */
export default definePlugin({
  name: 'audit',
  requires: { guard: ApiGuard, writes: AuditedWrites, database: Database },
  async setup({ deps, log, routes }) {
    // Without a database there is no log, and no write waits for one.
    if (!deps.database.absent) deps.writes.recordOn(createAuditTrail(deps.database, log))
    routes('conductor', async (app) => {
      deps.guard.protect(app)
      needsDatabase(app, deps.database)
      auditRoutes(app, deps.guard, deps.database)
    })
    return {}
  },
})
