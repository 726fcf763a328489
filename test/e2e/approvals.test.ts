import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import { type Cluster, eventually } from './cluster.ts'
import { startPaying } from './paying.ts'

interface Approval {
  readonly id: string
  readonly status: string
}
interface Run {
  readonly status: string
  readonly result?: string
  readonly events: readonly { readonly type: string; readonly stage?: string }[]
}

/** Statements of the tenant, outside of the service: what they lock keeps conductors waiting at a known place. */
async function connect(dsn: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: dsn })
  // The database of the test may go before whoever looks at it.
  client.on('error', () => {})
  await client.connect()
  await client.query("SELECT set_config('app.tenant_id', 'default', false)")
  return client
}

/** Kills the conductor with its decision stored, while it waits for what `lock` holds: whoever goes on is another one. */
async function killBehind(cluster: Cluster, approval: string, lock: string, waitsFor: string): Promise<void> {
  const [holder, looker] = [await connect(cluster.dsn), await connect(cluster.dsn)]
  try {
    await holder.query('BEGIN')
    await holder.query(lock)
    const { status } = await cluster.api('POST', `/api/approvals/${approval}/resolve`, { decision: 'approve' })
    assert.equal(status, 200)
    const waiting = `FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1`
    await eventually('the conductor waits for the lock', async () => {
      const { rows } = await looker.query(`SELECT 1 ${waiting}`, [waitsFor])
      return rows.length > 0
    })
    await cluster.kill('conductor')
    // Otherwise the server carries the statement out, and then finds nobody to tell.
    await looker.query(`SELECT pg_terminate_backend(pid) ${waiting}`, [waitsFor])
    await holder.query('ROLLBACK')
    // The wake-up that it had taken is another one's when it was not heard of for half a minute: that is now.
    const silent = `UPDATE pgboss.job SET heartbeat_on = now() - interval '1 minute' WHERE state = 'active'`
    await looker.query(silent)
  } finally {
    await Promise.all([holder.end(), looker.end()])
  }
  await cluster.start('conductor')
}

test('kill -9 of the conductor while a run waits for people: another one goes on, and each call is made once', async (t) => {
  const { cluster, payments } = await startPaying(t, 'four', ['conductor'])
  await cluster.agent('payer', { tools: ['pay'], requireApproval: ['pay'] })
  const pay = (amount: number) => ({ text: 'Let me pay.', toolCalls: [{ name: 'pay', arguments: { amount } }] })
  cluster.model.next(pay(1), pay(2), { text: 'Both are paid.' })
  const { body: begun } = await cluster.api<{ runId: string }>('POST', '/api/runs', {
    profile: 'payer',
    prompt: 'Pay.',
  })
  const { runId } = begun
  const looker = await connect(cluster.dsn)
  t.after(() => looker.end().catch(() => {}))
  /** The approval that waits, once the run is nobody's. */
  const parked = (): Promise<string> =>
    eventually('the run is parked', async () => {
      const text = `SELECT a.id FROM runs r JOIN approvals a ON a.tenant_id = r.tenant_id AND a.run_id = r.id AND a.status = 'waiting'
                    WHERE r.id = $1 AND r.claim_owner = 'parked'`
      return (await looker.query<{ id: string }>(text, [runId])).rows[0]?.id
    })
  const first = await parked()
  // Whatever it had still to tell of that.
  await cluster.kill('conductor')
  await cluster.start('conductor')
  const found = await cluster.api<Approval>('GET', `/api/approvals/${first}`)
  assert.equal(found.body.status, 'waiting')

  // Between the decision and whoever takes the run.
  await killBehind(cluster, first, `SELECT FROM runs WHERE id = '${runId}' FOR UPDATE`, '%UPDATE runs SET waited_ms%')
  const second = await parked()
  assert.notEqual(second, first)
  assert.deepEqual(
    payments.map(({ amount }) => amount),
    [1],
  )
  // The run is taken, and its next attempt is not on record.
  await killBehind(cluster, second, 'LOCK TABLE run_events IN SHARE MODE', '%SET attempt =%')
  const run = await eventually('the run is over', async () => {
    const { body } = await cluster.api<Run>('GET', `/api/runs/${runId}`)
    return body.status !== 'running' && body
  })
  assert.equal(run.status, 'ok', cluster.output())
  assert.match(run.result ?? '', /Both are paid\.$/)
  assert.deepEqual(
    payments.map(({ amount }) => amount),
    [1, 2],
  )
  assert.equal(run.events.filter(({ stage }) => stage === 'resumed').length, 2)
  assert.equal(run.events.filter(({ type }) => type === 'result' || type === 'error').length, 1)
})
