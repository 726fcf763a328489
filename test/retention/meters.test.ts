import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { Batches } from '../../plugins/retention/batches.ts'
import { batchOf } from '../../plugins/retention/kinds.ts'
import { Rollups } from '../../plugins/runs/postgres/rollups.ts'
import { startConductor } from '../conductor.ts'
import { ago } from './stage.ts'

const log = pino({ level: 'silent' })

test('figures reach back no further than meters are kept: what was added up of older runs goes with their meters', async (t) => {
  const { database, issue, call } = await startConductor(t)
  const { token } = await issue('acme', 'owner')
  const ended = (run: string, session: string, days: number) => ({
    text: `INSERT INTO run_meters (tenant_id, recorded_at, run_id, session_id, profile, status, started_at)
           VALUES ('acme', ${ago(days)}, '${run}', '${session}', 'p', 'ok', ${ago(days)})`,
  })
  const get = async (url: string) => (await call(token, 'GET', url)).json()
  const figures = async () => {
    const { runs, durationMs } = await get('/api/stats/overview?window=30d')
    const agents = await get('/api/stats/agents?window=30d')
    return {
      runs: runs.total,
      durations: durationMs !== null,
      sessions: agents.map((agent: { sessions: number }) => agent.sessions),
    }
  }
  await database.batch('acme', [ended('r1', 's1', 20), ended('r2', 's2', 12), ended('r3', 's3', 5)])
  const rollups = new Rollups(database, { log, endedAt: new Map(), lagMs: 0 })
  await rollups.roll('acme')
  assert.deepEqual(await figures(), { runs: 3, durations: true, sessions: [3] })
  const sweep = (days: number) =>
    new Batches(database, 0).all(
      'acme',
      batchOf('meters', new Date(Date.now() - days * 86_400_000)),
      new AbortController().signal,
    )
  await sweep(7)
  assert.deepEqual(await figures(), { runs: 1, durations: true, sessions: [1] })
  // A session that was counted there goes on, and is counted once, where it ended last.
  await database.batch('acme', [ended('r4', 's1', 0)])
  await rollups.roll('acme')
  assert.deepEqual(await figures(), { runs: 2, durations: true, sessions: [2] })
  await sweep(-2)
  assert.deepEqual(await figures(), { runs: 0, durations: false, sessions: [] })
})
