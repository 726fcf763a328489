import { definePlugin, maybe } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Database } from '#contracts/database'
import { Profiles } from '#contracts/profiles'
import { RunnerPool } from '#contracts/runner'
import { createBroadcast } from './broadcast.ts'
import { profileRoutes } from './routes.ts'
import { createProfileService } from './service.ts'
import { findProfile, findProfileIn } from './store.ts'

export default definePlugin({
  name: 'profiles',
  requires: { guard: ApiGuard, database: Database, pool: maybe(RunnerPool) },
  provides: { profiles: Profiles },
  async setup({ deps, log, routes, onStop }) {
    const { guard, database, pool } = deps
    const stopping = new AbortController()
    onStop(async () => stopping.abort())
    const service = createProfileService(database, createBroadcast({ pool, log, signal: stopping.signal }))
    routes('conductor', async (app) => {
      guard.protect(app)
      profileRoutes(app, guard, database, service)
    })
    return {
      profiles: { find: (tenantId, name) => findProfile(database, tenantId, name), findIn: findProfileIn },
    }
  },
})
