import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Broadcast } from '#contracts/broadcast'
import { Database } from '#contracts/database'
import { McpServers } from '#contracts/mcp-servers'
import { Profiles } from '#contracts/profiles'
import { RunnerPool } from '#contracts/runner'
import { Skills } from '#contracts/skills'
import { createBroadcast } from './broadcast.ts'
import { createChangeLog } from './changes.store.ts'
import { createPlacedProfiles, workerPlacementOf } from './placement.ts'
import { profileRoutes, type ViewOf } from './routes.ts'
import { createProfileService } from './service.ts'
import { findPlaced, findProfile, findProfileIn } from './store.ts'
import { versionRoutes } from './versions.routes.ts'

/** Profiles and their versions, and the broadcast by which runners follow them and the pools. */
export default definePlugin({
  name: 'profiles',
  config: Settings({
    broadcastEvery: Type.Optional(
      Duration('30s', 'How often runners are compared with the database, beyond telling them of each change at once.'),
    ),
  }),
  requires: {
    guard: ApiGuard,
    database: Database,
    pool: maybe(RunnerPool),
    skills: maybe(Skills),
    mcpServers: maybe(McpServers),
  },
  provides: { profiles: Profiles, broadcast: Broadcast },
  async setup({ config, deps, log, routes, stopping }) {
    const { guard, database, pool, skills, mcpServers } = deps
    const broadcast = createBroadcast({
      pool,
      log,
      changes: createChangeLog(database),
      everyMs: config.broadcastEvery ?? 30_000,
      signal: stopping,
    })
    void broadcast.watch()
    const placed = createPlacedProfiles((tenantId, name) => findPlaced(database, tenantId, name))
    const service = createProfileService(database, broadcast, { skills, mcpServers })
    const viewOf: ViewOf = (profile) => {
      const { placement: _, ...stored } = profile
      const workerPlacement = workerPlacementOf(profile, pool?.fleet() ?? [])
      return { ...stored, ...(workerPlacement ? { workerPlacement } : {}) }
    }
    routes('conductor', async (app) => {
      guard.protect(app)
      profileRoutes(app, guard, database, service, viewOf)
      versionRoutes(app, guard, database, service, viewOf)
    })
    return {
      profiles: {
        find: (tenantId, name) => findProfile(database, tenantId, name),
        findIn: findProfileIn,
        findPlaced: placed.find,
      },
      broadcast,
    }
  },
})
