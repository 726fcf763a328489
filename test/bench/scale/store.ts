import { setTimeout as sleep } from 'node:timers/promises'
import { pino } from 'pino'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { Claim } from '#contracts/run-store'
import type { Profile } from '#contracts/profiles'
import { databasePlugin, testKernel } from '#testing'
import { batchOf } from '../../../plugins/retention/kinds.ts'
import { Rollups } from '../../../plugins/runs/postgres/rollups.ts'
import { createPostgresRunStore, type PostgresRunStore } from '../../../plugins/runs/postgres/store.ts'
import { addingUp, ofRound, runThrough } from './report.ts'
import { timed } from '../statistics.ts'
import { tenant } from './seed.ts'

/** A conductor's store on the seeded database. Each work answers how many milliseconds it took. */
export interface Stage {
  rollUp(tenantId: string): Promise<void>
  readonly works: Readonly<Record<string, () => Promise<number>>>
  close(): Promise<void>
}

const profile = { name: 'profile0', runtime: 'general', model: 'builtin/demo', limits: {} } as unknown as Profile
/** Runs that a dead process leaves. */
const left = 10
/** Runs that retention deletes at once. */
const aged = 100

export async function openStore(dsn: string): Promise<Stage> {
  const stops: (() => unknown)[] = []
  const found: { db?: Database } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { db: Database },
    setup: async ({ deps }) => (Object.assign(found, deps), {}),
  })
  await testKernel({ after: (stop) => void stops.push(stop as () => unknown) }, [await databasePlugin(dsn), grab])
  const db = found.db!
  const long = 600_000
  const log = pino({ level: 'silent' })
  const options = { heartbeatMs: 4_000, leaseMs: 60_000, hungMs: 60_000, sweepMs: long, log }
  const store = createPostgresRunStore(db, options)
  await store.open()
  stops.unshift(() => store.close())
  return {
    works: worksOf(store, db, new Rollups(db, { log, endedAt: new Map(), lagMs: 0 })),
    async rollUp(tenantId) {
      const edge = { text: `SELECT rolled_until() > now() - interval '5 minutes' AS done` }
      // The other conductor may be at it.
      for (let done = false; !done;) {
        await store.rollUp(tenantId)
        done = (await db.batch<[{ done: boolean }[]]>(tenantId, [edge]))[0][0]!.done
        if (!done) await sleep(500)
      }
    },
    async close() {
      for (const stop of stops) await stop()
    },
  }
}

function worksOf(store: PostgresRunStore, db: Database, rollups: Rollups): Stage['works'] {
  const start = async () => {
    const run = { tenantId: tenant, runId: newId('run'), sessionId: newId('sess') }
    const started = await store.start({ ...run, task: { profile: 'profile0', prompt: 'x' }, create: { profile } })
    if (started.kind !== 'started') throw new Error(`the run was not started: ${started.kind}`)
    return started.claim
  }
  /** As if another process had started it. */
  const leave = (owner: string, { runId, sessionId }: Claim) =>
    db.batch(tenant, [
      { text: 'UPDATE runs SET claim_owner = $1 WHERE tenant_id = $2 AND id = $3', values: [owner, tenant, runId] },
      {
        text: 'UPDATE sessions SET claim_owner = $1 WHERE tenant_id = $2 AND id = $3',
        values: [owner, tenant, sessionId],
      },
    ])
  return {
    [runThrough]: () =>
      timed(async () => {
        const claim = await start()
        const tail = { firstSeq: 1, count: 1, lines: Buffer.from('{"type":"done"}\n') }
        await store.finish({ claim, status: 'ok', sessionStatus: 'idle', result: 'done', tail })
      }),
    async [addingUp]() {
      // A transaction of the other conductor may hold the edge up, or its own round may come first.
      for (;;) {
        const [, [before]] = await db.batch<[object[], { runs: number }[]]>(tenant, [endRuns, addedUp])
        const ms = await timed(() => rollups.roll(tenant))
        const [[after]] = await db.batch<[{ runs: number }[]]>(tenant, [addedUp])
        if (after!.runs - before!.runs === ofRound) return ms
      }
    },
    // Of so old ones that the smallest size has enough for all samples.
    [`retention of ${aged} runs`]: () =>
      timed(() =>
        db.tenant(tenant, async (tx) => {
          const { deleted } = await batchOf('runs', new Date(Date.now() - 20 * 86_400_000))(tx, aged, undefined)
          if (deleted['runs'] !== aged) throw new Error(`retention deleted ${deleted['runs']} runs`)
        }),
      ),
    async [`event logs of ${aged} runs`]() {
      await db.batch(tenant, [logNext])
      return timed(() =>
        db.tenant(tenant, async (tx) => {
          const some = batchOf('logs', new Date(Date.now() - 10 * 86_400_000))
          // The first batches delete the events before the last ones.
          for (let logs = 0; logs === 0;) logs = (await some(tx, aged, undefined)).deleted['logs'] ?? 0
        }),
      )
    },
    async [`sweep of ${left} runs of a dead process`]() {
      // The other conductor sweeps, too, and may be first.
      for (;;) {
        const owner = newId('inst')
        for (let n = 0; n < left; n++) await leave(owner, await start())
        const text = `INSERT INTO instances (id, kind, lease_until) VALUES ($1, 'conductor', now() - interval '1 second')`
        await db.systemBatch([{ text, values: [owner] }])
        let swept = 0
        const ms = await timed(async () => {
          swept = await store.sweepOrphans()
        })
        if (swept === left) return ms
      }
    },
  }
}

/** Logs of four parts for the runs that retention comes to next. */
const logNext = {
  text: `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
         SELECT '${tenant}', id, 2 * n - 1, 2, convert_to(E'{"type":"assistant"}\n{"type":"result"}\n', 'UTF8') FROM (
           SELECT id FROM runs WHERE tenant_id = '${tenant}' AND (started_at, id) > (
             coalesce((SELECT started_at FROM run_logs_seen WHERE tenant_id = '${tenant}'), '-infinity'),
             coalesce((SELECT run_id FROM run_logs_seen WHERE tenant_id = '${tenant}'), ''))
           ORDER BY started_at, id LIMIT ${aged}) next, generate_series(1, 4) n ON CONFLICT DO NOTHING`,
}
/** Twenty profiles, and a session for every other run. */
const endRuns = {
  text: `INSERT INTO run_meters (tenant_id, run_id, session_id, profile, status, started_at, model, input_tokens, output_tokens, cost_microcents)
         SELECT '${tenant}', gen_random_uuid()::text, 'sess_' || n / 2, 'profile' || n % 20, 'ok', now() - n % 40 * interval '100 milliseconds',
           'builtin/demo', 900, 200, 4000 FROM generate_series(1, ${ofRound}) n`,
}
const addedUp = {
  text: `SELECT coalesce(sum(ok), 0)::float8 AS runs FROM run_rollups WHERE tenant_id = '${tenant}' AND span = 1 AND at > now() - interval '1 hour'`,
}
