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
    maxDelegationDepth: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 20,
        description: 'How many delegations may lead to one another; 3 unless given.',
      }),
    ),
    maxDelegations: Type.Optional(
      Type.Integer({ minimum: 0, maximum: 1_000, description: 'Tasks that one run may delegate; 32 unless given.' }),
    ),
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
    const { maxDelegationDepth = 3, maxDelegations = 32 } = ctx.config
    const service = createRunService({
      store,
      profiles,
      runners,
      prices,
      mcpServers,
      webhooks,
      kv,
      log: ctx.log,
      delegation: { maxDepth: maxDelegationDepth, maxChildren: maxDelegations },
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
