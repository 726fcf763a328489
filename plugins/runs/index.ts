import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard, InternalGuard } from '#contracts/auth'
import { Idempotency } from '#contracts/idempotency'
import { Kv } from '#contracts/kv'
import { McpServers } from '#contracts/mcp-servers'
import { Prices } from '#contracts/prices'
import { Profiles } from '#contracts/profiles'
import { RunStore } from '#contracts/run-store'
import { RunnerPool } from '#contracts/runner'
import { RunDispatch } from '#contracts/runs'
import { Webhooks } from '#contracts/webhooks'
import { createDispatch } from './dispatch.ts'
import { startOnce } from './once.ts'
import { publicRunRoutes, runRoutes } from './routes.ts'
import { createRunService } from './service.ts'

/** Runs: claimed in the store, executed on a runner, recorded as one log that everybody follows. */
export default definePlugin({
  name: 'runs',
  config: Settings({
    deadlineGrace: Type.Optional(
      Duration('5s', 'A runner gets this long past the profile limit to end a run itself before it is ended here.'),
    ),
    windDown: Type.Optional(Duration('10s', 'How long a stopped runner stream may take to end.')),
    drain: Type.Optional(Duration('5s', 'How long a stopping server lets its runs end before it interrupts them.')),
  }),
  requires: {
    store: RunStore,
    profiles: Profiles,
    runners: RunnerPool,
    prices: maybe(Prices),
    mcpServers: maybe(McpServers),
    webhooks: maybe(Webhooks),
    kv: Kv,
    api: maybe(ApiGuard),
    internal: maybe(InternalGuard),
    idempotency: maybe(Idempotency),
  },
  provides: { dispatch: RunDispatch },
  async setup(ctx) {
    const { store, profiles, runners, prices, mcpServers, webhooks, kv, api, internal, idempotency } = ctx.deps
    const { deadlineGrace = 5_000, windDown = 10_000, drain = 5_000 } = ctx.config
    const service = createRunService({
      store,
      profiles,
      runners,
      prices,
      mcpServers,
      webhooks,
      kv,
      log: ctx.log,
      deadlineGraceMs: deadlineGrace,
      windDownMs: windDown,
      drainMs: drain,
    })
    ctx.onStop(() => service.close())
    if (api) {
      ctx.routes('conductor', async (app) => {
        api.protect(app)
        const start = startOnce(service, false, idempotency)
        runRoutes(app, service, { guard: api, who: { read: 'member', write: 'member' }, start })
        publicRunRoutes(app, service, store, api)
      })
    }
    if (internal) {
      ctx.routes('internal', async (app) => {
        internal.protect(app)
        const start = startOnce(service, true, idempotency)
        runRoutes(app, service, { guard: internal, who: { read: 'service', write: 'service' }, start })
      })
    }
    return { dispatch: createDispatch(service) }
  },
})
