import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { appErrors, Apps } from '#contracts/apps'
import { Approvals } from '#contracts/approvals'
import { ApiGuard } from '#contracts/auth'
import { Database, needsDatabase } from '#contracts/database'
import { Egress, egressErrors } from '#contracts/egress'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { McpServers } from '#contracts/mcp-servers'
import { ModelAccess, modelAccessErrors } from '#contracts/model-access'
import { Profiles } from '#contracts/profiles'
import { secretErrors } from '#contracts/secrets'
import { Fleet } from '#contracts/runner'
import { skillErrors, Skills } from '#contracts/skills'
import { BroadcastSender } from './broadcast.ts'
import { createChangeLog } from './changes.store.ts'
import { createProfileLookup, PostgresProfileStore, withPins } from './store.ts'
import { MemoryProfileStore } from './memory.ts'
import { poolRoutes } from './pools.ts'
import { profileRoutes, profileWriteRoutes, versionRoutes } from './routes.ts'
import { createProfileService } from './service.ts'
import { createView } from './view.ts'
import { profileErrors } from './errors.ts'

/**
 * Profiles with their versions, the runner pools that they name, and the broadcast that keeps every runner up to date with both. Specification 4.3
 * and 4.6.
 */
export default definePlugin({
  name: 'profiles',
  config: Settings({
    broadcastEvery: Type.Optional(
      Duration('30s', 'How often runners are compared with the database, beyond telling them of each change at once.'),
    ),
  }),
  errors: [profileErrors, appErrors, egressErrors, limitErrors, modelAccessErrors, secretErrors, skillErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    fleet: maybe(Fleet),
    skills: maybe(Skills),
    mcpServers: maybe(McpServers),
    egress: maybe(Egress),
    apps: maybe(Apps),
    approvals: maybe(Approvals),
    limits: maybe(TenantLimits),
    models: maybe(ModelAccess),
  },
  provides: { profiles: Profiles },
  async setup({ config, deps, log, routes, stopping }) {
    const { guard, database, fleet, skills, mcpServers, egress, apps, limits, models } = deps
    const approvals = database.absent ? undefined : deps.approvals
    const memory = database.absent ? new MemoryProfileStore() : undefined
    const store = memory ?? new PostgresProfileStore(database)
    const broadcast = new BroadcastSender({
      fleet,
      log,
      changes: memory ?? createChangeLog(database),
      everyMs: config.broadcastEvery ?? 30_000,
      signal: stopping,
    })
    void broadcast.watch()
    const service = createProfileService(
      store,
      database,
      broadcast,
      { skills, mcpServers, egress, apps, approvals, models },
      limits,
    )
    limits?.uses('profiles', (tenantId) => store.count(tenantId))
    const viewOf = createView(fleet)
    routes('conductor', async (app) => {
      guard.protect(app)
      profileRoutes(app, guard, store, viewOf)
      profileWriteRoutes(app, guard, service, viewOf)
    })
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      versionRoutes(app, guard, database, service, viewOf)
      poolRoutes(app, guard, database, broadcast, limits)
    })
    return { profiles: memory ? withPins(memory, skills) : createProfileLookup(store, skills) }
  },
})
