import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, maybe, Settings } from '#kernel'
import { appErrors, Apps, type ToolkitProvider, ToolkitProviders } from '#contracts/apps'
import { ApiGuard } from '#contracts/auth'
import { Database, databaseErrors, needsDatabase, presentDatabase } from '#contracts/database'
import { Kv } from '#contracts/kv'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { EndUserData, retentionErrors, TenantData } from '#contracts/retention'
import { Webhooks, webhookErrors } from '#contracts/webhooks'
import { createClientAddress, trustedProxies } from '#kit'
import { callbackRoutes, connectionRoutes, connectRoutes } from './connections.routes.ts'
import { Connector } from './connect.ts'
import { Connections } from './connections/accounts.ts'
import { createEndUserData, createTenantData } from './connections/index.ts'
import { createAppMetrics } from './metrics.ts'
import { toolkitRoutes } from './routes.ts'
import { RunTools } from './run-tools.ts'
import { Toolkits } from './toolkits.ts'

/**
 * Connected apps. The toolkits of all providers form one list, and their tools are called as the account of a tenant or of an end user, by the API
 * and by runs. Specification 4.13.
 */
export default definePlugin({
  name: 'apps',
  config: Settings({
    returnOrigins: CommaList(
      'Comma-separated origins of pages to which owners of accounts may be redirected after connecting them (`returnUrl`).',
    ),
    timeout: Type.Optional(Duration('60s', 'Timeout of a call of an app.')),
    requestsPerMinute: Type.Integer({
      default: 300,
      minimum: 1,
      maximum: 100_000,
      description: 'Returns of owners of accounts from one client address.',
    }),
    trustedProxies,
  }),
  errors: [appErrors, databaseErrors, limitErrors, retentionErrors, webhookErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    providers: ToolkitProviders,
    connections: Connections,
    kv: Kv,
    limits: maybe(TenantLimits),
    webhooks: maybe(Webhooks),
  },
  provides: { apps: Apps, people: EndUserData, data: TenantData },
  async setup({ config, deps, log, metrics: registry, routes, stopping }) {
    const { guard, database, connections, kv, limits, webhooks } = deps
    const stored = presentDatabase(database)
    // Providers keep their data in the database, so without one there are no toolkits.
    const providers = stored ? deps.providers : new Map<string, ToolkitProvider>()
    const metrics = createAppMetrics(registry)
    connections.serve(providers)
    const timeoutMs = config.timeout ?? 60_000
    const toolkits = new Toolkits({ providers, accounts: connections, limits, metrics, timeoutMs, stopping })
    const { returnOrigins } = config
    const more = { database, limits, webhooks, returnOrigins, metrics, log, stopping }
    const connector = new Connector({ accounts: connections, toolkits, ...more })
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      toolkitRoutes(app, guard, toolkits)
      connectRoutes(app, guard, { toolkits, connector })
      connectionRoutes(app, guard, { database, toolkits })
    })
    routes('conductor', async (app) => {
      needsDatabase(app, database)
      const clientOf = createClientAddress(config.trustedProxies)
      await callbackRoutes(app, { connector, kv, clientOf, requestsPerMinute: config.requestsPerMinute })
    })
    return {
      apps: new RunTools({ toolkits, connector, log }),
      people: stored ? { connection: createEndUserData(stored, connections) } : {},
      data: stored ? { connections: createTenantData(stored, connections) } : {},
    }
  },
})
