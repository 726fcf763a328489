import { definePlugin, maybe } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Billing, presentBilling } from '#contracts/billing'
import { Database, needsDatabase } from '#contracts/database'
import { PublishedStats } from '#contracts/stats'
import { createPublishedStats } from './figures.ts'
import { createReader } from './reader.ts'
import { statsRoutes } from './routes.ts'

/** Stats and usage of a tenant, read from the meters that runs, gateways and sandboxes write. */
export default definePlugin({
  name: 'stats',
  requires: { guard: ApiGuard, database: Database, billing: maybe(Billing) },
  provides: { published: PublishedStats },
  async setup({ deps, routes }) {
    const reader = createReader(deps.database)
    routes('conductor', async (app) => {
      deps.guard.protect(app)
      needsDatabase(app, deps.database)
      statsRoutes(app, deps.guard, reader, presentBilling(deps.billing))
    })
    return { published: createPublishedStats(reader) }
  },
})
