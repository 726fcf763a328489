import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database } from '#contracts/database'
import { PublishedStats } from '#contracts/stats'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import stats from '../index.ts'

/** The test chooses the caller. The guard's own tests show how a key becomes a caller. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant']), role: 'member', keyId: 'tak_test' }),
}

export interface Meter {
  readonly at: Date | string
  readonly tenant?: string
  readonly run?: string
  readonly session?: string
  readonly profile?: string
  readonly status?: string
  readonly ms?: number
  readonly tokens?: readonly [input: number, output: number, cached: number]
  readonly toolCalls?: number
  /** Null when the cost is not known. */
  readonly microcents?: number | null
}

/** The stats plugin on a real database, with functions that insert rows like their usual writers. */
export async function statsKernel(t: TestContext) {
  const found: { database?: Database; published?: PublishedStats } = {}
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, published: PublishedStats },
    setup: async ({ deps }) => (Object.assign(found, deps), {}),
  })
  const kernel = await testKernel(t, [
    await databasePlugin(await freshDatabase(t)),
    fake(ApiGuard, openGuard),
    stats,
    probe,
  ])
  const database = found.database!
  const insert = (tenant: string, table: string, row: Record<string, unknown>) => {
    const columns = Object.entries({ tenant_id: tenant, ...row })
    const text = `INSERT INTO ${table} (${columns.map(([c]) => c).join(', ')}) VALUES (${columns.map((_, i) => `$${i + 1}`).join(', ')})`
    return { text, values: columns.map(([, value]) => value) }
  }
  let rows = 0
  const meter = (m: Meter) => {
    const at = new Date(m.at)
    const [input, output, cached] = m.tokens ?? [0, 0, 0]
    return insert(m.tenant ?? 'acme', 'run_meters', {
      recorded_at: at,
      run_id: m.run ?? `run-${++rows}`,
      session_id: m.session ?? `sess-${rows}`,
      profile: m.profile ?? 'p',
      status: m.status ?? 'ok',
      started_at: new Date(at.getTime() - (m.ms ?? 0)),
      input_tokens: input,
      output_tokens: output,
      cached_tokens: cached,
      tool_calls: m.toolCalls ?? 0,
      cost_microcents: m.microcents === undefined ? 0 : m.microcents,
    })
  }
  return {
    database,
    published: found.published!,
    insert: async (tenant: string, table: string, ...many: Record<string, unknown>[]) =>
      void (await database.batch(
        tenant,
        many.map((row) => insert(tenant, table, row)),
      )),
    async meters(...many: Meter[]) {
      for (const [tenant = 'acme', group] of Map.groupBy(many, (m) => m.tenant))
        await database.batch(tenant, group.map(meter))
    },
    get: (url: string, tenant = 'acme') =>
      kernel.listeners['conductor']!.inject({ method: 'GET', url, headers: { tenant } }),
  }
}

export const ago = (ms: number): Date => new Date(Date.now() - ms)
export const minutes = 60_000
