import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard, InternalGuard } from '#contracts/auth'
import { Idempotency } from '#contracts/idempotency'
import { Kv } from '#contracts/kv'
import { McpServers } from '#contracts/mcp-servers'
import { Prices } from '#contracts/prices'
import { onCrash, Profiles } from '#contracts/profiles'
import { RunStore } from '#contracts/run-store'
import { RunnerPool } from '#contracts/runner'
import { RunDispatch } from '#contracts/runs'
import { Webhooks } from '#contracts/webhooks'
import { conductorWire } from '#contracts/wire/conductor'
import { publicRunRoutes, publicWire, runRoutes } from './routes.ts'
import { createDispatch, RunService } from './service.ts'

/** Runs: claimed in the store, executed on a runner, recorded as one log that everybody follows. */
export default definePlugin({
  name: 'runs',
  config: Settings({
    onCrash: Type.Optional(
      Type.Union(
        onCrash.map((one) => Type.Literal(one)),
        {
          description:
            'What becomes of a run whose conductor dies, where its profile does not say: `interrupt` unless given.',
        },
      ),
    ),
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
    drain: Type.Optional(
      Duration('18s', 'How long a stopping server lets its runs end that no other conductor can take over.'),
    ),
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
    const { api, internal, idempotency, ...deps } = ctx.deps
    const { onCrash: unlessSaid = 'interrupt', deadlineGrace = 5_000, windDown = 10_000, drain = 18_000 } = ctx.config
    const { maxDelegationDepth = 3, maxDelegations = 32 } = ctx.config
    const service = new RunService({
      ...deps,
      log: ctx.log,
      delegation: { maxDepth: maxDelegationDepth, maxChildren: maxDelegations },
      onCrash: unlessSaid,
      deadlineGraceMs: deadlineGrace,
      windDownMs: windDown,
      drainMs: drain,
    })
    ctx.onStop(() => service.close())
    if (api) {
      ctx.routes('conductor', async (app) => {
        api.protect(app)
        runRoutes(app, service, { guard: api, rows: publicWire, idempotency })
        publicRunRoutes(app, service, deps.store, api)
      })
    }
    if (internal) {
      ctx.routes('internal', async (app) => {
        internal.protect(app)
        runRoutes(app, service, { guard: internal, rows: conductorWire, idempotency: undefined })
      })
    }
    // While it drains, whoever reads a run here goes on reading.
    for (const listener of ['gateway', 'conductor', 'internal']) {
      if (ctx.listeners.includes(listener)) ctx.beforeClose(listener, () => service.drain())
    }
    return { dispatch: createDispatch(service) }
  },
})
