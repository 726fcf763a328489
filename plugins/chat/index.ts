import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { accessErrors } from '#contracts/access-errors'
import { Tokens } from '#contracts/auth'
import { billingErrors } from '#contracts/billing'
import { Database, needsDatabase } from '#contracts/database'
import { Idempotency, idempotencyErrors } from '#contracts/idempotency'
import { Kv } from '#contracts/kv'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { LinkedObjects, linkErrors } from '#contracts/linked-objects'
import { objectErrors } from '#contracts/object-store'
import { runErrors } from '#contracts/run-errors'
import { RunDispatch } from '#contracts/runs'
import { createClientAddress, HitWindows, KeyWatch, trustedProxies, WrongKeys, wrongKeysPerMinute } from '#kit'
import { callerOf, ChatAdmission, createKeyLimit, tenantOf } from './admission.ts'
import { uploadRoute } from '#kit/uploads'
import { chatRoutes } from './chat.ts'
import { createIngress, createSweep } from './sweeps.ts'
import { createFollower } from './public-run.ts'
import { conversationRoutes, runRoutes } from './runs.routes.ts'
import { SyncWaits } from './sync-waits.ts'
import { ChatParams, refusals } from './schema.ts'
import { chatErrors } from './errors.ts'

/** The public chat surface of published agents: everything of specification 4.21 but health and metrics. */
export default definePlugin({
  name: 'chat',
  config: Settings({
    rateLimitBackend: Type.Union([Type.Literal('redis'), Type.Literal('memory')], {
      default: 'redis',
      description: 'GATEWAY_RATE_LIMIT_BACKEND: `redis` counts in the key-value store, `memory` in this process.',
    }),
    publicHost: Type.Optional(Type.String({ description: 'CHAT_GATEWAY_PUBLIC_HOST: logged on boot.' })),
    heartbeat: Duration('15s', 'Idle time after which an open stream gets a `: ping`.'),
    drain: Duration('20s', 'Time for running synchronous calls to finish when the server stops.'),
    wrongKeysPerMinute,
    trustedProxies,
  }),
  errors: [
    chatErrors,
    accessErrors,
    runErrors,
    billingErrors,
    idempotencyErrors,
    limitErrors,
    linkErrors,
    objectErrors,
  ],
  requires: {
    database: Database,
    tokens: Tokens,
    kv: Kv,
    dispatch: RunDispatch,
    idempotency: Idempotency,
    limits: maybe(TenantLimits),
    links: maybe(LinkedObjects),
  },
  async setup({ config, deps, log, metrics: registry, stopping, routes, onStart, onStop }) {
    const { database, tokens, kv, dispatch, idempotency, limits, links } = deps
    // Fail at boot instead of at the first chat: without the pepper no key can be checked.
    if (!database.absent) tokens.hash('ao:pub-key:v1', '')
    const follower = createFollower({ database, dispatch, log, registry })
    const sweep = createSweep(database, log)
    const ingress = createIngress(database, log)
    const clientOf = createClientAddress(config.trustedProxies)
    const wrongKeys = new WrongKeys(config.wrongKeysPerMinute)
    const admission = new ChatAdmission({ database, tokens, log, clientOf, wrongKeys, registry })
    const waits = new SyncWaits(stopping, config.drain)
    const watch = new KeyWatch({
      held: () => [...admission.held(), ...waits.held()],
      alive: (tenantId, keyIds) => admission.alive(tenantId, keyIds),
      log,
    })
    const common = { database, dispatch, follower, heartbeatMs: config.heartbeat }
    const told = { accepted: ingress.touched, doubtful: sweep.touched }

    routes('gateway', async (app) => {
      admission.observe(app)
      needsDatabase(app, database)
      admission.crossOrigin(app)
      const alone = config.rateLimitBackend === 'memory' ? { alone: new HitWindows().hit } : {}
      const limit = await createKeyLimit(app, alone.alone ?? kv.hit)
      await app.register(async (guarded) => {
        admission.guard(guarded, 'memory')
        limits?.guard(guarded, { ...alone, tenantOf, writes: 'chatsPerMinute' })
        chatRoutes(guarded, { ...common, ...told, idempotency, log, waits, limit })
      })
      await app.register(async (guarded) => {
        admission.guard(guarded, 'database')
        limits?.guard(guarded, { ...alone, tenantOf, writes: 'readsPerMinute' })
        runRoutes(guarded, common)
        conversationRoutes(guarded, common)
      })
      // An upload begins no run, so nothing would look at a remembered key again.
      await app.register(async (guarded) => {
        admission.guard(guarded, 'database')
        limits?.guard(guarded, { ...alone, tenantOf, writes: 'chatsPerMinute' })
        uploadRoute(guarded, {
          url: '/v1/chat/:tenant/:agent/attachments',
          who: 'agent-key',
          tags: ['chat'],
          params: ChatParams,
          refusals: [...refusals, chatErrors.rateLimited],
          onRequest: limit,
          links,
          tenantOf: (request) => callerOf(request).tenantId,
        })
      })
    })
    if (database.absent) return {}
    onStart(async () => {
      admission.start()
      watch.start()
      sweep.start()
      void sweep.turn()
      ingress.start()
      const { publicHost: public_host, rateLimitBackend } = config
      const rate_limit_backend = rateLimitBackend === 'memory' ? 'memory' : kv.backend
      const about = dispatch.about ?? { conductor_internal_url: 'in process', previous_signing_key: false }
      log.info({ ...about, rate_limit_backend, public_host }, 'chat-gateway.ready')
    })
    onStop(async () => {
      await Promise.all([sweep.stop(), ingress.stop(), admission.stop(), watch.stop()])
    })
    return {}
  },
})
