import { Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings } from '#kernel'
import { ApiGuard, KeyIssuer, Tokens } from '#contracts/auth'
import { Billing, billingErrors } from '#contracts/billing'
import { Database, needsDatabase } from '#contracts/database'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { Profiles } from '#contracts/profiles'
import { PublishedStats } from '#contracts/stats'
import { webhookErrors, Webhooks } from '#contracts/webhooks'
import { keyRoutes } from './routes.ts'
import { createAgentKeyService } from './keys.ts'
import { metricsRoutes, publishedRoutes, publishingRoutes } from './routes.ts'
import { createPublishingService } from './agents.ts'
import { publishingErrors } from './errors.ts'

export default definePlugin({
  name: 'publishing',
  config: Settings({
    publicHost: Type.Optional(
      Type.String({
        pattern: '^[A-Za-z0-9.:\\[\\]-]+$',
        description: 'CHAT_GATEWAY_PUBLIC_HOST: host, and port if any, under which clients reach the gateway.',
      }),
    ),
  }),
  errors: [publishingErrors, webhookErrors, billingErrors, limitErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    profiles: Profiles,
    tokens: Tokens,
    issuer: KeyIssuer,
    stats: maybe(PublishedStats),
    webhooks: maybe(Webhooks),
    billing: maybe(Billing),
    limits: maybe(TenantLimits),
  },
  async setup({ config, deps, routes }) {
    const { guard, database, stats } = deps
    const service = createPublishingService({ ...deps, publicHost: config.publicHost })
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      publishedRoutes(app, guard, service)
      publishingRoutes(app, guard, service)
      keyRoutes(app, guard, createAgentKeyService(deps))
      if (stats) metricsRoutes(app, guard, service, stats)
    })
    return {}
  },
})
