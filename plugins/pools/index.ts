import { definePlugin } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Broadcast } from '#contracts/broadcast'
import { Database } from '#contracts/database'
import { poolRoutes } from './routes.ts'

/** Parts of the fleet that profiles name. */
export default definePlugin({
  name: 'pools',
  requires: { guard: ApiGuard, database: Database, broadcast: Broadcast },
  async setup({ deps, routes }) {
    const { guard, database, broadcast } = deps
    routes('conductor', async (app) => {
      guard.protect(app)
      poolRoutes(app, guard, database, broadcast)
    })
    return {}
  },
})
