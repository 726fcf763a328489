import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { pino } from 'pino'
import { Counter, Registry } from 'prom-client'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { microcentsPerCent, type Prices } from '#contracts/prices'
import type { Profile } from '#contracts/profiles'
import { createEventEncoder, type RuntimeEvent } from '#contracts/run-event'
import type { Claim, RunStore, StartOutcome } from '#contracts/run-store'
import type { Task } from '#contracts/runs'
import { Budgets } from '../../plugins/billing/budgets.ts'
import { createHolds } from '../../plugins/billing/holds.ts'
import { Ledger } from '../../plugins/billing/ledger.ts'
import type { Budget } from '../../plugins/billing/schema.ts'
import { createPostgresRunStore, type PostgresRunStore } from '../../plugins/runs/postgres/store.ts'

export const unique = (kind: string): string => `${kind}-${randomBytes(6).toString('hex')}`
export const cents = (amount: number): number => Math.round(amount * microcentsPerCent)

export const prices: Prices = {
  version: 'test',
  services: { toolCall: cents(0.01), sandboxSecond: cents(0.001), storedGibDay: 0 },
  priceOf: () => ({ inputCentsPerMillion: 0, outputCentsPerMillion: 0 }),
  // A token is a cent, so that tests read well.
  costCents: ({ inputTokens, model }) => (model === 'unpriced' ? undefined : inputTokens),
}

export interface Ended {
  readonly costCents?: number | undefined
  readonly knownCostCents?: number | undefined
  readonly toolCalls?: number
}

interface Options {
  /** Microcents. */
  readonly reserve?: number
  /** The models that have a price, where others are refused. */
  readonly priced?: readonly string[]
}

/** Run stores on one database with billing in them, as conductors have them. */
export async function stage(t: TestContext, { reserve = 0, priced }: Options = {}) {
  // Hooks run in the order they were registered: the stores close before their database goes.
  const opened: PostgresRunStore[] = []
  t.after(() => Promise.all(opened.map((store) => store.close())))
  const got: { database?: Database } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { database: Database },
    setup: async ({ deps }) => (Object.assign(got, deps), {}),
  })
  await testKernel(t, [await databasePlugin(await freshDatabase(t)), grab], { listen: false })
  const database = got.database!
  const ledger = new Ledger(database)
  const budgets = new Budgets(database, { check() {} }, undefined)
  const refused = new Counter({ name: 'refused', help: 'x', labelNames: ['code'], registers: [new Registry()] })
  const holds = { ledger, budgets, holdMicrocents: cents(1), reserveMicrocents: reserve, refused }
  const table = priced && { priceOf: (model: string) => (priced.includes(model) ? prices.priceOf(model) : undefined) }
  const billing = createHolds({ ...holds, priced: table })
  const open = async (more: { prices?: Prices } = { prices }): Promise<PostgresRunStore> => {
    const timing = { heartbeatMs: 60_000, leaseMs: 120_000, hungMs: 600_000, sweepMs: 3_600_000 }
    const store = createPostgresRunStore(database, { ...timing, billing, ...more, log: pino({ level: 'silent' }) })
    await store.open()
    opened.push(store)
    return store
  }
  return {
    database,
    ledger,
    billing,
    open,
    grant: (amount: number, tenantId = 'acme') =>
      ledger.credit(tenantId, { cents: amount, kind: 'grant', reference: unique('grant') }),
    account: async (tenantId = 'acme') => {
      const found = await ledger.account(tenantId)
      return found && { balance: found.balance / microcentsPerCent, held: found.held / microcentsPerCent }
    },
    /** Publishes the profile `writer`. What it returns makes a task one that answers a chat with it. */
    async published() {
      const written = `INSERT INTO profiles (tenant_id, name, id, document) VALUES ('acme', 'writer', 'prof_1', '{}')`
      const agent = `INSERT INTO published_agents (tenant_id, id, profile_name, slug, rate_limit_rpm, sync_max_duration_seconds, expose_tool_events)
        VALUES ('acme', 'pub_1', 'writer', 'writer', 1, 1, false)`
      await database.batch('acme', [{ text: written }, { text: agent }])
      return (endUserId: string, keyId: string): Partial<Task> => {
        const [publicRunId, conversationId] = [unique('prun'), unique('conv')]
        return { chat: { publicRunId, conversationId, publishedId: 'pub_1', continued: false, endUserId, keyId } }
      }
    },
    budget: async (...all: Budget[]) => budgets.replace('acme', all),
    budgets: () => budgets.list('acme'),
  }
}

export const profile = (more: Partial<Profile> = {}): Profile =>
  ({ name: 'writer', runtime: 'general', limits: {}, ...more }) as Profile

/** Asks for a run in a new session. */
export function ask(
  store: RunStore,
  task: Partial<Task> = {},
  of: Partial<Profile> = {},
  tenantId = 'acme',
): Promise<StartOutcome> {
  const runId = task.id ?? unique('run')
  const start = { tenantId, runId, sessionId: unique('sess'), create: { profile: profile(of) } }
  return store.start({ ...start, task: { profile: 'writer', prompt: 'hello', ...task } })
}

export async function begin(...asked: Parameters<typeof ask>): Promise<Claim> {
  const outcome = await ask(...asked)
  assert.ok(outcome.kind === 'started', outcome.kind === 'unfunded' ? outcome.why.code : outcome.kind)
  return outcome.claim
}

export const chunk = (claim: Claim, firstSeq: number, ...events: RuntimeEvent[]) => {
  const encoder = createEventEncoder(claim.runId, claim.sessionId, firstSeq)
  return { firstSeq, count: events.length, lines: Buffer.from(events.map((event) => encoder.line(event)).join('')) }
}

export const finish = (
  store: RunStore,
  claim: Claim,
  { costCents, knownCostCents, toolCalls = 0 }: Ended,
): Promise<boolean> =>
  store.finish({
    claim,
    status: 'ok',
    sessionStatus: 'idle',
    result: 'done',
    usage: {
      inputTokens: 1,
      outputTokens: 0,
      model: 'm',
      ...(costCents === undefined ? {} : { costCents }),
      ...(knownCostCents === undefined ? {} : { knownCostCents }),
    },
    toolCalls,
    tail: undefined,
  })
