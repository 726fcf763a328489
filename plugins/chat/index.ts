import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, Settings } from '#kernel'
import { Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { Idempotency } from '#contracts/idempotency'
import { Kv } from '#contracts/kv'
import { RunDispatch } from '#contracts/runs'
import { createAuthenticator } from './authenticate.ts'
import { chatRoutes } from './chat.routes.ts'
import { createIngress } from './ingress.ts'
import { createInstance } from './instance.ts'
import { createMetrics } from './metrics.ts'
import { createNotes } from './notes.ts'
import { createBeginOnce } from './once.ts'
import { preflightRoutes, readableWhenAway } from './origin.ts'
import { createHitCounter, createKeyLimit } from './rate-limit.ts'
import { createJoin } from './resume.ts'
import { runRoutes } from './runs.routes.ts'
import { commitOutcome, createChatService, outcomeOfFailure } from './service.ts'
import { createSweep } from './sweep.ts'
import { createSyncWaits } from './sync-wait.ts'
import { createWatchers } from './watchers.ts'

/** The public chat surface of published agents: everything of specification 4.21 but health and metrics. */
export default definePlugin({
  name: 'chat',
  config: Settings({
    rateLimitBackend: Type.Union([Type.Literal('redis'), Type.Literal('memory')], {
      default: 'redis',
      description: 'GATEWAY_RATE_LIMIT_BACKEND: `redis` counts in the key-value store, `memory` in this process.',
    }),
    publicHost: Type.Optional(Type.String({ description: 'CHAT_GATEWAY_PUBLIC_HOST: logged on boot.' })),
    heartbeat: Duration('15s', 'Silence after which an open stream gets a `: ping`.'),
    drain: Duration('20s', 'What synchronous calls under way get to finish when the server stops.'),
  }),
  requires: { database: Database, tokens: Tokens, kv: Kv, dispatch: RunDispatch, idempotency: Idempotency },
  async setup({ config, deps, log, metrics: registry, stopping, routes, onStart, onStop }) {
    const { database, tokens, kv, dispatch, idempotency } = deps
    // Said at boot, not at the first chat: without the pepper no key could be checked.
    tokens.hash('ao:pub-key:v1', '')
    const metrics = createMetrics(registry, () => watchers.size)
    const watchers = createWatchers({
      dispatch,
      log,
      outcomeOf(err) {
        const outcome = outcomeOfFailure(err)
        log.warn({ err, code: outcome.code }, 'chat.start_watcher_failed')
        return outcome
      },
      async commit(watcher, outcome) {
        const stored = await commitOutcome(database, watcher, outcome)
        // A run that was refused for a busy session never was.
        if (stored.refusal?.code !== 'conversation_busy') metrics.ended(stored)
        return stored
      },
    })
    const instance = createInstance(database, log)
    const chats = createChatService({
      database,
      dispatch,
      log,
      watchers,
      owner: () => instance.owner(),
      onAccepted: (tenantId) => ingress.accepted(tenantId),
      onDoubt: (tenantId) => sweep.doubt(tenantId),
    })
    const sweep = createSweep({ database, dispatch, instance, watchers, beginning: chats.beginning, log })
    const ingress = createIngress({ database, log })
    const notes = createNotes({ database, watchers, log })
    const { authenticate, callerOf, admits } = createAuthenticator({ database, tokens, log, onKeyUsed: notes.keyUsed })
    const countHit = createHitCounter({
      backend: config.rateLimitBackend,
      kv,
      log,
      onFallback: metrics.limitFallback,
    })
    const begin = createBeginOnce({ idempotency, chats, join: createJoin({ database, dispatch, watchers }) })
    const waits = createSyncWaits(stopping, config.drain)

    routes('gateway', async (app) => {
      metrics.observe(app)
      app.addHook('onRequest', async (_request, reply) => {
        void reply.header('vary', 'Origin')
      })
      app.addHook('onSend', async (request, reply) => readableWhenAway(request, reply))
      preflightRoutes(app, { admits })
      await app.register(async (guarded) => {
        guarded.addHook('onRequest', authenticate)
        const limit = await createKeyLimit(guarded, callerOf, countHit)
        chatRoutes(guarded, { begin, waits, callerOf, limit, heartbeatMs: config.heartbeat })
        runRoutes(guarded, { database, dispatch, watchers, callerOf, heartbeatMs: config.heartbeat })
      })
    })
    onStart(async () => {
      await instance.open()
      notes.start()
      sweep.start()
      ingress.start()
      const { publicHost: public_host, rateLimitBackend } = config
      const rate_limit_backend = rateLimitBackend === 'memory' ? 'memory' : kv.backend
      const about = dispatch.about ?? { conductor_internal_url: 'in process', previous_signing_key: false }
      log.info({ ...about, rate_limit_backend, public_host }, 'chat-gateway.ready')
    })
    onStop(async () => {
      const swept = sweep.stop()
      const left = watchers.size
      await watchers.close()
      await swept
      await ingress.stop()
      await notes.stop()
      await instance.close(left > 0)
    })
    return {}
  },
})
