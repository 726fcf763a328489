import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard, InternalGuard } from '#contracts/auth'
import { Kv } from '#contracts/kv'
import { RunnerMembership, RunnerPool } from '#contracts/runner'
import { membershipRoutes } from './membership.routes.ts'
import { createObserver } from './observe.ts'
import { topologyRoutes } from './routes.ts'

/** The fleet as tenants see it, and its changes by operators. Specification 4.14. */
export default definePlugin({
  name: 'topology',
  config: Settings({
    requestsPerMinute: Type.Integer({
      default: 30,
      minimum: 1,
      maximum: 100_000,
      description: 'Readings of one tenant.',
    }),
    freshFor: Duration('2s', 'How long an observation of a runner is shown before it is probed again.'),
  }),
  requires: {
    pool: RunnerPool,
    membership: RunnerMembership,
    kv: Kv,
    api: maybe(ApiGuard),
    internal: maybe(InternalGuard),
  },
  async setup(ctx) {
    const { pool, membership, kv, api, internal } = ctx.deps
    const { requestsPerMinute, freshFor: freshMs } = ctx.config
    const observe = createObserver({ pool, freshMs })
    if (api) {
      ctx.routes('conductor', async (app) => {
        api.protect(app)
        topologyRoutes(app, { guard: api, kv, requestsPerMinute, observe })
      })
    }
    if (internal) {
      ctx.routes('internal', async (app) => {
        internal.protect(app)
        membershipRoutes(app, membership, ctx.log)
      })
    }
    return {}
  },
})
