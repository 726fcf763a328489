import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { definePlugin, Duration, maybe, type Plugin, Settings } from '#kernel'
import { Approvals } from '#contracts/approvals'
import { Apps } from '#contracts/apps'
import { ApiGuard, InternalGuard } from '#contracts/auth'
import { Billing, billingErrors, presentBilling } from '#contracts/billing'
import { Database, presentDatabase } from '#contracts/database'
import { Egress } from '#contracts/egress'
import { Idempotency, idempotencyErrors } from '#contracts/idempotency'
import { ConductorTools } from '#contracts/conductor-tools'
import { Kv } from '#contracts/kv'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { linkErrors, LinkedObjects } from '#contracts/linked-objects'
import { ObjectWrites } from '#contracts/object-writes'
import { McpServers } from '#contracts/mcp-servers'
import { Recall } from '#contracts/memory'
import { ModelAccess, modelAccessErrors } from '#contracts/model-access'
import { Prices } from '#contracts/prices'
import { onCrash, Profiles } from '#contracts/profiles'
import { runErrors } from '#contracts/run-errors'
import { RunStore } from '#contracts/run-store'
import { Fleet } from '#contracts/runner'
import { RunDispatch } from '#contracts/runs'
import { skillErrors, Skills } from '#contracts/skills'
import { Webhooks } from '#contracts/webhooks'
import { conductorWire } from '#contracts/wire/conductor'
import type { Charges } from './postgres/charges.ts'
import { RunLinks } from './links.ts'
import { publicRunRoutes, publicWire, runRoutes } from './routes.ts'
import { createDispatch, RunService } from './service.ts'

const RunsConfig = Settings({
  dir: Type.Optional(
    Type.String({
      minLength: 1,
      description: 'AGENT_ORC_RUNS_DIR: where runs are written to JSONL files, one for each; none when empty.',
    }),
  ),
  // Three missed heartbeats mean a dead process. With a sweep every 2 s, all its runs are over within 15 s of its death.
  heartbeat: Duration('4s', 'How often this process renews its lease in the database.'),
  lease: Duration(
    '12s',
    'A process that has not renewed its lease for this long counts as dead: its runs are interrupted or retried.',
  ),
  hungAfter: Duration(
    '1m',
    'If the main thread has not answered for this long, the lease of the process is not renewed: it counts as dead once the lease has expired.',
  ),
  sweep: Duration('2s', 'How often this process looks for dead ones.'),
  onCrash: Type.Union(
    onCrash.map((one) => Type.Literal(one)),
    {
      default: 'interrupt',
      description: 'What happens to a run whose conductor dies, unless its profile says otherwise.',
    },
  ),
  deadlineGrace: Duration(
    '5s',
    'A runner gets this long past the profile limit to end a run itself before it is ended here.',
  ),
  windDown: Duration('10s', 'How long a stopped runner stream may take to end.'),
  drain: Duration('18s', 'How long a stopping server waits for runs that no other conductor can take over.'),
})

/** Runs: claimed in the store, executed on a runner, recorded as one log that everybody follows. `open` opens the store. */
export const runsOn = (open: (options: StoreOptions) => Promise<RunStore>): Plugin =>
  definePlugin({
    name: 'runs',
    config: RunsConfig,
    errors: [runErrors, billingErrors, idempotencyErrors, limitErrors, linkErrors, modelAccessErrors, skillErrors],
    requires: {
      database: maybe(Database),
      profiles: Profiles,
      runners: Fleet,
      prices: maybe(Prices),
      billing: maybe(Billing),
      mcpServers: maybe(McpServers),
      egress: maybe(Egress),
      apps: maybe(Apps),
      skills: maybe(Skills),
      recall: maybe(Recall),
      conductorTools: ConductorTools,
      approvals: maybe(Approvals),
      models: maybe(ModelAccess),
      webhooks: maybe(Webhooks),
      tenantLimits: maybe(TenantLimits),
      linked: maybe(LinkedObjects),
      objectWrites: maybe(ObjectWrites),
      kv: Kv,
      api: maybe(ApiGuard),
      internal: maybe(InternalGuard),
      idempotency: maybe(Idempotency),
    },
    provides: { dispatch: RunDispatch, store: RunStore },
    async setup(ctx) {
      const { api, internal, idempotency, webhooks, tenantLimits, linked, ...deps } = ctx.deps
      const { onCrash, deadlineGrace, windDown, drain } = ctx.config
      const store = await open(ctx)
      const service = new RunService({
        ...deps,
        // An unrestricted model list is left out, so that chats do not pay for checking it.
        models: deps.models?.restricts ? deps.models : undefined,
        billing: presentBilling(deps.billing),
        store,
        webhooks,
        tenantLimits,
        links: new RunLinks(linked, ctx.log),
        log: ctx.log,
        onCrash,
        deadlineGraceMs: deadlineGrace,
        windDownMs: windDown,
        drainMs: drain,
      })
      tenantLimits?.uses('runningRuns', (tenantId) => service.limits.running(tenantId))
      tenantLimits?.uses('queuedRuns', (tenantId) => store.countWaiting(tenantId))
      tenantLimits?.uses('eventLogBytesPerDay', (tenantId) => store.countLogBytes(tenantId, 0))
      tenantLimits?.uses('sessions', (tenantId) => store.countSessions(tenantId, tenantLimits.of(tenantId).sessions))
      deps.approvals?.onDecided((tenantId, runId) => service.resume(tenantId, runId))
      webhooks?.readRuns((tenantId, runId) => store.findRun(tenantId, runId))
      ctx.onStop(() => service.close())
      if (api) {
        ctx.routes('conductor', async (app) => {
          api.protect(app)
          runRoutes(app, service, { guard: api, rows: publicWire, idempotency })
          publicRunRoutes(app, service, store, api)
        })
      }
      if (internal) {
        ctx.routes('internal', async (app) => {
          internal.protect(app)
          runRoutes(app, service, { guard: internal, rows: conductorWire, idempotency: undefined })
        })
      }
      // Readers of a run stay connected while this process drains.
      for (const listener of ['gateway', 'conductor', 'internal']) {
        if (ctx.listeners.includes(listener)) ctx.beforeClose(listener, () => service.drain())
      }
      return { dispatch: createDispatch(service), store }
    },
  })

export default runsOn(openStore)

interface StoreOptions {
  readonly config: {
    /** The folder in which runs are written to files as well. */
    readonly dir?: string
    /** How often this process renews its lease, in milliseconds. */
    readonly heartbeat: number
    readonly lease: number
    readonly hungAfter: number
    readonly sweep: number
  }
  readonly deps: { readonly database: Database | undefined } & Charges
  readonly log: FastifyBaseLogger
  onStart(fn: () => Promise<void>): void
  onStop(fn: () => Promise<void>): void
}

/** The store of the role: PostgreSQL, or process memory where there is no database. Only the one in use is loaded. */
async function openStore({ config, deps, log, onStart, onStop }: StoreOptions): Promise<RunStore> {
  const { dir, heartbeat, lease, hungAfter, sweep } = config
  const database = presentDatabase(deps.database)
  const folder = dir === undefined ? undefined : await (await import('./journal/folder.ts')).JournalFolder.open(dir)
  if (!database) {
    if (!folder) return new (await import('./memory/store.ts')).MemoryRunStore()
    const kept = await (await import('./memory/kept.ts')).KeptRunStore.open(folder)
    onStop(() => kept.close())
    return kept
  }
  const { createPostgresRunStore } = await import('./postgres/store.ts')
  const timing = { heartbeatMs: heartbeat, leaseMs: lease, hungMs: hungAfter, sweepMs: sweep }
  const store = createPostgresRunStore(database, {
    ...timing,
    prices: deps.prices,
    billing: presentBilling(deps.billing),
    log,
  })
  onStart(() => store.open())
  onStop(() => store.close())
  if (!folder) return store
  const mirror = new (await import('./journal/mirror.ts')).JournalMirror(store, folder, log)
  onStart(async () => mirror.start())
  onStop(() => mirror.stop())
  const erased = new (await import('./journal/folder.ts')).ErasedFiles(database, folder, log)
  onStart(async () => erased.start())
  onStop(() => erased.stop())
  return mirror.store
}
