import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard, InternalGuard } from '#contracts/auth'
import { Kv } from '#contracts/kv'
import { Profiles } from '#contracts/profiles'
import { RunStore } from '#contracts/run-store'
import { RunnerPool } from '#contracts/runner'
import { RunDispatch } from '#contracts/runs'
import { createDispatch } from './dispatch.ts'
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
    kv: Kv,
    api: maybe(ApiGuard),
    internal: maybe(InternalGuard),
  },
  provides: { dispatch: RunDispatch },
  async setup(ctx) {
    const { store, profiles, runners, kv, api, internal } = ctx.deps
    const { deadlineGrace = 5_000, windDown = 10_000, drain = 5_000 } = ctx.config
    const service = createRunService({
      store,
      profiles,
      runners,
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
        runRoutes(app, service, { guard: api, who: { read: 'member', write: 'member' }, attach: false })
        publicRunRoutes(app, service, store, api)
      })
    }
    if (internal) {
      ctx.routes('internal', async (app) => {
        internal.protect(app)
        runRoutes(app, service, { guard: internal, who: { read: 'service', write: 'service' }, attach: true })
      })
    }
    return { dispatch: createDispatch(service) }
  },
})
