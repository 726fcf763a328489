import { Counter } from 'prom-client'
import { Type } from '@sinclair/typebox'
import { Base64Secret, definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Database, databaseErrors, needsDatabase } from '#contracts/database'
import { Kv } from '#contracts/kv'
import { TenantLimits } from '#contracts/limits'
import { secretErrors, Secrets } from '#contracts/secrets'
import { type FindRun, Webhooks, webhookErrors } from '#contracts/webhooks'
import { createAttempt } from './attempt.ts'
import { createRate, Deliverer, startRounds } from './deliverer.ts'
import { AllowHosts, createPolicy } from './policy.ts'
import { deliveryRoutes, secretRoutes } from './routes.ts'
import { createSigningSecrets } from './secrets.ts'
import { createWebhookService } from './service.ts'
import { createOutbox } from './store.ts'

/** Sends signed messages about ended runs to receivers. The transaction that ends a run also puts the message into the outbox. */
export default definePlugin({
  name: 'webhooks',
  config: Settings({
    key: Type.Optional(Base64Secret('AGENT_ORC_WEBHOOK_KEY: the signing secrets of tenants are derived from it.')),
    allowHosts: AllowHosts,
    timeout: Type.Optional(Duration('15s', 'Timeout of a receiver.')),
  }),
  errors: [webhookErrors, databaseErrors, secretErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    kv: maybe(Kv),
    limits: maybe(TenantLimits),
    secrets: maybe(Secrets),
  },
  provides: { webhooks: Webhooks },
  async setup({ config, deps, log, metrics, routes, onStart, onStop }) {
    const { key, allowHosts, timeout = 15_000 } = config
    const { guard, database, kv, limits } = deps
    let findRun: FindRun | undefined
    const attempts = new Counter({
      name: 'webhook_attempts_total',
      help: 'Webhook messages that were posted, by outcome.',
      labelNames: ['outcome'],
      registers: [metrics],
    })
    const policy = createPolicy({ allowHosts, timeoutMs: timeout })
    onStop(() => policy.close())
    const secrets = key && createSigningSecrets(key, deps.secrets)
    const outbox = createOutbox(database, limits)
    const stopping = new AbortController()
    const attempt = createAttempt({
      database,
      findRun: async (tenantId, runId) => findRun?.(tenantId, runId),
      secrets,
      policy,
      timeoutMs: timeout,
      stop: stopping.signal,
    })
    const deliverer = new Deliverer({
      outbox,
      log,
      rate: createRate(kv, limits),
      async attempt(tenantId, message) {
        const how = await attempt(tenantId, message)
        attempts.inc({ outcome: how.state === 'pending' ? 'failed' : how.state })
        return how
      },
    })
    onStop(async () => {
      stopping.abort()
      await deliverer.stop()
    })
    const wake = (tenantId: string): void => {
      if (findRun) deliverer.wake(tenantId)
    }
    const listening: (() => void | Promise<void>)[] = []
    onStop(async () => {
      for (const stop of listening) await stop()
    })
    if (secrets && !database.absent) {
      onStart(async () => {
        listening.push(await database.listen('webhooks', wake), startRounds(database, wake, log))
      })
    }
    const service = createWebhookService({ database, outbox, secrets, wake })
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      deliveryRoutes(app, guard, service)
      secretRoutes(app, guard, service)
    })
    return {
      webhooks: {
        check(tenantId, url) {
          if (database.absent) throw databaseErrors.databaseRequired()
          if (!secrets) throw webhookErrors.webhooksUnavailable()
          policy.check(tenantId, url)
        },
        tell: (tx, told) => outbox.add(tx, told),
        readRuns(find) {
          findRun = find
        },
      },
    }
  },
})
