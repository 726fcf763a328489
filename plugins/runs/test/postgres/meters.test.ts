import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import type { Database } from '#contracts/database'
import type { Claim, RunStore } from '#contracts/run-store'
import type { Profile } from '#contracts/profiles'
import { freshDatabase, startProxy } from '#testing'
import { openStores } from './stores.ts'

const tenants = ['acme', 'globex'] as const
const profile = { name: 'p', runtime: 'general', model: 'a/m', limits: {} } as unknown as Profile

async function begin(store: RunStore, tenantId: string, n: number): Promise<Claim> {
  const run = { tenantId, runId: `run-${n}`, sessionId: `sess-${n}` }
  const started = await store.start({ ...run, task: { profile: 'p', prompt: 'x' }, create: { profile } })
  assert.ok(started.kind === 'started')
  return started.claim
}

/** Repeats the same end until the store has answered it, as the conductor does. */
async function finish(store: RunStore, claim: Claim, n: number): Promise<void> {
  const usage = {
    inputTokens: n,
    outputTokens: 2 * n,
    cachedTokens: 1,
    model: 'a/m',
    ...(n % 2 ? { costCents: n / 1e6 } : {}),
  }
  const end = {
    claim,
    status: 'ok',
    sessionStatus: 'idle',
    result: 'done',
    usage,
    toolCalls: n,
    sandbox: { idleSeconds: n, runSeconds: 0 },
    tail: undefined,
  } as const
  for (;;) {
    try {
      return void (await store.finish(end))
    } catch {}
  }
}

interface Problem {
  readonly run_id: string
}

/** Of these runs, those that ended without exactly one meter that says what the run says, and meters without a run that ended. */
const problemsOf = async (db: Database, tenantId: string, ids: readonly string[]): Promise<Problem[]> => {
  const [problems, unfinished] = await db.batch<[Problem[], object[]]>(tenantId, [
    {
      text: `
        SELECT coalesce(r.id, m.run_id) AS run_id
        FROM (SELECT * FROM runs WHERE finished_at IS NOT NULL AND id = ANY($1)) r FULL JOIN (
          SELECT run_id, count(*) AS times, min(status) AS status, sum(input_tokens) AS input, sum(output_tokens) AS output,
            sum(tool_calls) AS calls, sum(coalesce(cost_microcents, -1)) AS cost
          FROM run_meters WHERE run_id = ANY($1) GROUP BY run_id
        ) m ON m.run_id = r.id
        WHERE r.id IS NULL OR m.run_id IS NULL OR m.times <> 1 OR m.status <> r.status
          OR m.input <> coalesce((r.usage ->> 'inputTokens')::bigint, 0)
          OR m.output <> 2 * m.input OR (r.status = 'ok' AND m.calls <> m.input)
          OR (SELECT sum(amount) FROM usage_meters u WHERE u.meter = 'sandbox_seconds' AND u.subject = r.session_id)
            IS DISTINCT FROM CASE r.status WHEN 'ok' THEN m.input END
          OR m.cost <> CASE WHEN r.usage IS NULL THEN 0 WHEN m.input % 2 = 1 THEN m.input ELSE -1 END`,
      values: [ids],
    },
    { text: 'SELECT id FROM runs WHERE finished_at IS NULL AND id = ANY($1)', values: [ids] },
  ])
  assert.deepEqual(unfinished, [])
  return problems
}

test('however runs finish, are stolen or swept, and connections are cut, each has one meter that says what it used', async (t) => {
  const dsn = await freshDatabase(t)
  const proxy = await startProxy(t, dsn)
  const [near, far] = [await openStores(t, dsn), await openStores(t, proxy.url)]
  const ends = ['finish', 'steal', 'both', 'sweep'] as const
  let count = 0
  let cuts = 0
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.constantFrom(...ends), { minLength: 4, maxLength: 10 }),
      fc.array(fc.constantFrom('pass', 'cut', 'cut_answer'), { minLength: 3, maxLength: 6 }),
      fc.boolean(),
      async (plan, verdicts, dies) => {
        const [owner, other] = [await far.open(), await near.open()]
        const runs = []
        for (const end of plan) {
          const tenantId = tenants[++count % 2]!
          runs.push({ end, tenantId, n: count, claim: await begin(owner, tenantId, count) })
        }
        const left = [...verdicts]
        proxy.inspect((bytes) => {
          if (!bytes.includes('run-finish')) return 'pass'
          const verdict = left.shift() ?? 'pass'
          if (verdict !== 'pass') cuts++
          return verdict
        })
        const steal = { code: 'cancelled', message: 'taken away' }
        const dead = dies
          ? near.db
              .systemBatch([{ text: `UPDATE instances SET dead = true WHERE NOT dead` }])
              .then(() => other.sweepOrphans())
          : undefined
        await Promise.all([
          ...runs.map(async ({ end, tenantId, n, claim }) => {
            const finished = end === 'finish' || end === 'both' ? finish(owner, claim, n) : undefined
            if (end === 'steal' || end === 'both') await other.steal(tenantId, claim.runId, 'cancelled', steal)
            await finished
          }),
          dead,
        ])
        proxy.inspect(undefined)
        // The runs that are left end with their owner.
        await near.db.systemBatch([{ text: `UPDATE instances SET dead = true` }])
        await (await near.open()).sweepOrphans()
        const ids = runs.map(({ claim }) => claim.runId)
        for (const tenantId of tenants) assert.deepEqual(await problemsOf(near.db, tenantId, ids), [])
      },
    ),
    { numRuns: 12 },
  )
  assert.ok(cuts > 5, `${cuts} connections were cut in the middle of an end`)
})
