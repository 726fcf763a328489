import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import type { Database } from '#contracts/database'
import { keepInDoubt } from '../chat.ts'
import { createSweep } from '../sweeps.ts'
import { findRun } from '../public-run.ts'
import { emptyDatabase, gateway, publish, sql, until } from './gateway.ts'

let counter = 0
/** A public run that a gateway keeps in doubt, as if it had been stored `seconds` ago. */
async function inDoubt(database: Database, tenantId: string, seconds: number) {
  const tail = String(counter++).padStart(33, '0')
  const run = {
    tenantId,
    publishedId: 'pub_a',
    conversationId: `conv_${tail}`,
    publicRunId: `prun_${tail}`,
    runId: `run_${tail}`,
  }
  assert.ok(await keepInDoubt(database, run, { message: 'Hi' }))
  await sql(
    database,
    tenantId,
    `UPDATE public_runs SET created_at = now() - $2 * interval '1 second' WHERE id = $1`,
    run.publicRunId,
    seconds,
  )
  return run
}
type Kept = Awaited<ReturnType<typeof inDoubt>>

/** The conductor's run, in the state in which it is found. */
const runOf = (database: Database, { tenantId, runId }: Kept, status: string, answer?: string, code?: string) =>
  sql(
    database,
    tenantId,
    `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, result, error_code, finished_at)
     VALUES ($1, $2, 'sess-1', 'p', $3, 'Hi', 'inst', 1, $4, $5, CASE WHEN $3 = 'running' THEN NULL ELSE now() END)`,
    tenantId,
    runId,
    status,
    answer ?? null,
    code ?? null,
  )

function sweepOf(database: Database) {
  const logs: Record<string, unknown>[] = []
  const log = pino({ level: 'debug' }, { write: (line: string) => void logs.push(JSON.parse(line)) })
  const counts = () =>
    logs.filter(({ msg }) => msg === 'crash.recovery.sweep').map(({ swept, finished, lost }) => [swept, finished, lost])
  return { sweep: createSweep(database, log), counts }
}

const told = async (database: Database, { tenantId, publicRunId }: Kept) => {
  const run = await findRun(database, tenantId, publicRunId)
  return [run?.status, run?.outcome?.message]
}

test('a sweep makes lost of what was never begun, in every tenant, and touches nothing that is under way', async (t) => {
  const database = await emptyDatabase(t)
  const { sweep, counts } = sweepOf(database)
  for (const tenant of ['acme', 'globex']) await publish(database, { tenant })
  const never = [await inDoubt(database, 'acme', 31), await inDoubt(database, 'globex', 31)]
  const young = await inDoubt(database, 'acme', 10)
  const begun = await inDoubt(database, 'acme', 31)
  await runOf(database, begun, 'running')
  await sweep.turn()
  assert.deepEqual(counts(), [[2, 0, 2]])
  for (const run of never) {
    assert.deepEqual(await told(database, run), ['lost', 'The run was lost in a restart. Send the message again.'])
  }
  for (const run of [young, begun]) assert.deepEqual(await told(database, run), ['dispatching', undefined])
  for (const tenant of ['acme', 'globex']) sweep.touched.add(tenant)
  await sweep.turn()
  assert.equal(counts().length, 1, 'nothing is swept twice')
})

test('runs that ended while their public run was open, as those of an earlier release may, are ended as they did', async (t) => {
  const database = await emptyDatabase(t)
  const { sweep, counts } = sweepOf(database)
  const ends = [
    ['ok', 'fine', undefined, ['ok', 'fine']],
    ['error', undefined, 'model_error', ['error', 'The agent could not answer.']],
    ['cancelled', undefined, 'cancelled', ['error', 'The run was cancelled.']],
    ['error', undefined, 'timeout', ['error', 'The agent took too long to answer.']],
  ] as const
  const runs: Kept[] = []
  for (const [i, [status, answer, code]] of ends.entries()) {
    const run = await inDoubt(database, 'default', 0)
    if (i % 2 === 0)
      await sql(database, 'default', `UPDATE public_runs SET status = 'running' WHERE id = $1`, run.publicRunId)
    await runOf(database, run, status, answer, code)
    runs.push(run)
  }
  await sweep.turn()
  assert.deepEqual(counts(), [[4, 4, 0]])
  for (const [i, [, , , expected]] of ends.entries()) assert.deepEqual(await told(database, runs[i]!), expected)
  const pinned = await sql(database, 'default', `SELECT 1 FROM conversations WHERE session_id = 'sess-1'`)
  assert.equal(pinned.length, 4)
})

test('gateways that sweep at once end each run once; between full sweeps only the tenants in doubt are looked at', async (t) => {
  const database = await emptyDatabase(t)
  await publish(database)
  await Promise.all(Array.from({ length: 30 }, () => inDoubt(database, 'acme', 31)))
  const [a, b] = [sweepOf(database), sweepOf(database)]
  await Promise.all([a.sweep.turn(), b.sweep.turn()])
  const lost = [...a.counts(), ...b.counts()].reduce((sum, [, , n]) => sum + Number(n), 0)
  assert.equal(lost, 30)
  assert.equal((await sql(database, 'acme', `SELECT 1 FROM messages WHERE role = 'assistant' AND failed`)).length, 30)
  const later = await inDoubt(database, 'acme', 31)
  await a.sweep.turn()
  assert.deepEqual(await told(database, later), ['dispatching', undefined])
  a.sweep.touched.add('acme')
  await a.sweep.turn()
  assert.equal((await told(database, later))[0], 'lost')
})

test('a gateway sweeps at boot, and says how much; whoever waits for a lost run is told', async (t) => {
  const a = await gateway(t)
  const swept = () => a.kernel.logs.find((line) => line['msg'] === 'crash.recovery.sweep')
  await until(() => swept() !== undefined)
  assert.deepEqual([swept()!['swept'], swept()!['lost']], [0, 0])
  const agent = await publish(a.database)
  a.dispatch.cut = 'before'
  const payload = { message: 'Hi' }
  const { public_run_id } = (
    await a.app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  ).json()
  const url = `${agent.url}/runs/${public_run_id}`
  const waiting = a.app.inject({ url: `${url}/stream`, headers: agent.auth })
  waiting.catch(() => {})
  await sql(a.database, 'acme', `UPDATE public_runs SET created_at = now() - interval '31 seconds'`)
  await sweepOf(a.database).sweep.turn()
  assert.match((await waiting).body, /^event: error\ndata: \{"code":"upstream","message":"The run was lost/)
  assert.equal((await a.app.inject({ url, headers: agent.auth })).statusCode, 410)
})
