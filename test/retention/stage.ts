import type { TestContext } from 'node:test'
import type { LightMyRequestResponse } from 'fastify'
import type { Registry } from 'prom-client'
import { definePlugin, type Plugin } from '#kernel'
import { AuditedWrites } from '#contracts/audit'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database, type Statement } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { TenantData, type TenantDataStore } from '#contracts/retention'
import { databasePlugin, fake, freshDatabase, type TestKernel, testKernel } from '#testing'
import audit from '../../plugins/audit/index.ts'
import tenants from '../../plugins/tenants/index.ts'
import retention from '../../plugins/retention/index.ts'

/** Every caller is an admin of the tenant in the header. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant'] ?? 'default'), role: 'admin', keyId: 'tak_boss' }),
}

export interface Stage {
  readonly database: Database
  readonly logs: TestKernel['logs']
  /** The listener, for what an injected request does not show. */
  readonly app: TestKernel['listeners'][string]
  metrics(): Promise<string>
  /** One pass over all tenants, as a job would make it. */
  pass(signal?: AbortSignal): Promise<void>
  /** Counts what is stored of every tenant, as the nightly job would. */
  recount(signal?: AbortSignal): Promise<void>
  call(
    method: 'GET' | 'POST' | 'PATCH' | 'DELETE',
    url: string,
    tenant?: string,
    body?: object,
  ): Promise<LightMyRequestResponse>
  /** How many rows a tenant sees in a table. */
  count(tenantId: string, table: string): Promise<number>
  sql(tenantId: string, ...texts: string[]): Promise<void>
}

/** Retention on a real database, with jobs that are done when a test says so. */
export async function stage(
  t: TestContext,
  config: object = {},
  dsn?: string,
  data: Readonly<Record<string, TenantDataStore>> = {},
  plugins: readonly Plugin[] = [],
): Promise<Stage> {
  const found: Database[] = []
  const registries: Registry[] = []
  const works = new Map<string, (signal: AbortSignal) => Promise<void>>()
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    setup: async ({ deps, metrics }) => (found.push(deps.database), registries.push(metrics), {}),
  })
  const kernel = await testKernel(t, [
    await databasePlugin(dsn ?? (await freshDatabase(t))),
    fake(ApiGuard, openGuard),
    fake(AuditedWrites, { recordOn() {} }),
    fake(Jobs, {
      every: (name, _cron, work) => void works.set(name, work),
      ask: async () => {},
      wakeUps: () => ({ send: async () => {}, statements: async () => [], takenBack: async () => [] }),
    }),
    fake(TenantData, data),
    audit,
    tenants,
    ...plugins,
    { name: 'retention', plugin: retention, config: { pauseMs: 0, ...config } },
    probe,
  ])
  const database = found[0]!
  return {
    database,
    logs: kernel.logs,
    app: kernel.listeners['conductor']!,
    metrics: () => registries[0]!.metrics(),
    pass: (signal = new AbortController().signal) => works.get('retention')!(signal),
    recount: (signal = new AbortController().signal) => works.get('stored-bytes')!(signal),
    call: (method, url, tenant = 'default', body) =>
      kernel.listeners['conductor']!.inject({ method, url, headers: { tenant }, ...(body ? { body } : {}) }),
    async count(tenantId, table) {
      const [[row]] = await database.batch<[{ n: number }[]]>(tenantId, [
        { text: `SELECT count(*)::int AS n FROM ${table}` },
      ])
      return row!.n
    },
    async sql(tenantId, ...texts) {
      await database.batch(
        tenantId,
        texts.map((text): Statement => ({ text })),
      )
    },
  }
}

/** How long ago, as SQL. */
export const ago = (days: number): string => `now() - interval '${days} days'`

const text = (value: string | undefined): string => (value === undefined ? 'NULL' : `'${value}'`)

interface RunOf {
  readonly endUser?: string | undefined
  readonly publicRun?: string
  /** The run that delegated it. */
  readonly parent?: string
}

/** A session and a run in it that ended so many days ago, with a log, a webhook message and a saved state. */
export const run = (
  tenant: string,
  id: string,
  days: number,
  session = `sess-${id}`,
  { endUser, publicRun, parent }: RunOf = {},
): string[] => [
  `INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status, run_count, created_at, last_used_at, last_prompt)
   VALUES ('${tenant}', '${session}', 'p', 'general', '{}', 'idle', 1, ${ago(days)}, ${ago(days)}, 'secret of ${id}') ON CONFLICT DO NOTHING`,
  `INSERT INTO session_state (tenant_id, session_id, content_type, bytes) VALUES ('${tenant}', '${session}', 'x', 'secret of ${id}') ON CONFLICT DO NOTHING`,
  `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, started_at, finished_at, ordinal, end_user_id, public_run, parent)
   VALUES ('${tenant}', '${id}', '${session}', 'p', 'ok', 'secret of ${id}', 'x', 1, ${ago(days)}, ${ago(days)}, 1, ${text(endUser)}, ${text(publicRun)},
     ${text(parent && `{"runId": "${parent}", "depth": 1}`)})`,
  `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
   VALUES ('${tenant}', '${id}', 1, 1, convert_to('{"type":"result","text":"secret of ${id}"}' || chr(10), 'UTF8'))`,
  `INSERT INTO webhook_deliveries (tenant_id, id, run_id, url, state, created_at) VALUES ('${tenant}', 'msg_${id}', '${id}', 'https://x.example', 'delivered', ${ago(days)})`,
  `INSERT INTO run_meters (tenant_id, recorded_at, run_id, session_id, profile, status, started_at) VALUES ('${tenant}', ${ago(days)}, '${id}', '${session}', 'p', 'ok', ${ago(days)})`,
]

/** One chat of a conversation: a run with its public run and both messages. */
export const chat = (tenant: string, id: string, days: number, conversation: string, endUser?: string): string[] => {
  const who = text(endUser)
  return [
    ...run(tenant, `run_${id}`, days, `sess-${conversation}`, { endUser, publicRun: `prun_${id}` }),
    `INSERT INTO conversations (tenant_id, id, published_id, session_id, end_user_id)
     VALUES ('${tenant}', '${conversation}', 'pub', 'sess-${conversation}', ${who}) ON CONFLICT DO NOTHING`,
    `INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, status, end_user_id, created_at, finished_at)
     VALUES ('${tenant}', 'prun_${id}', 'pub', '${conversation}', 'run_${id}', 'ok', ${who}, ${ago(days)}, ${ago(days)})`,
    ...['user', 'assistant'].map(
      (role) => `INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, at)
     VALUES ('${tenant}', '${conversation}', 'prun_${id}', '${role}', 'secret of ${id}', ${ago(days)})`,
    ),
  ]
}

/** What the roll-ups of a tenant's runs and sessions keep of each. */
export const rolledUp = (tenant: string): string[] => [
  `INSERT INTO run_marks (tenant_id, status, started_at, run_id, profile)
   SELECT tenant_id, status, started_at, id, profile FROM runs WHERE tenant_id = '${tenant}'`,
  `INSERT INTO session_ends (tenant_id, session_id, profile, last_at)
   SELECT tenant_id, id, profile, last_used_at FROM sessions WHERE tenant_id = '${tenant}'`,
]
