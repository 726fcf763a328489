import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createEventEncoder, logDeletedStage, type RuntimeEvent } from '#contracts/run-event'
import { Batches } from '../../plugins/retention/batches.ts'
import { batchOf } from '../../plugins/retention/kinds.ts'
import { startConductor } from '../conductor.ts'
import { ago, chat, run, stage } from './stage.ts'

const said = (text: string): RuntimeEvent => ({ type: 'assistant', text, delta: true })
const answered: RuntimeEvent = { type: 'result', text: 'the answer \\ 42 ü', finishReason: 'stop' }

/** Replaces the log of a run by these parts. */
const logOf = (tenant: string, id: string, parts: readonly (readonly RuntimeEvent[])[]): string[] => {
  const encoder = createEventEncoder(id, `sess-${id}`, 1)
  const rows = parts.map((events) => {
    const first = encoder.next
    const lines = Buffer.from(events.map((event) => encoder.line(event)).join('')).toString('hex')
    return `('${tenant}', '${id}', ${first}, ${events.length}, '\\x${lines}')`
  })
  return [
    `DELETE FROM run_events WHERE run_id = '${id}'`,
    `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines) VALUES ${rows.join(', ')}`,
  ]
}
const long = Array.from({ length: 120 }, (_, i) => [said(`word ${i}`)])
const whole = [...long, [said('the last words'), answered]]

test('event logs have a time of their own: a run that is kept for longer keeps the end of its log, and what only the log had goes', async (t) => {
  const { pass, sql, count, call, metrics, database } = await stage(t)
  const many = (table: string) => count('acme', table)
  for (const tenant of ['acme', 'globex']) {
    await sql(tenant, ...run(tenant, 'run_old', 10), ...logOf(tenant, 'run_old', whole))
    await sql(tenant, ...run(tenant, 'run_new', 2), ...logOf(tenant, 'run_new', whole))
  }
  await sql('acme', ...chat('acme', 'talk', 10, 'conv'), ...logOf('acme', 'run_talk', whole))
  // Of one event, which is the end.
  await sql('acme', ...run('acme', 'run_short', 10))
  // It began long ago, and works still.
  await sql(
    'acme',
    ...run('acme', 'run_open', 10),
    ...logOf('acme', 'run_open', long),
    `UPDATE runs SET status = 'running', finished_at = NULL WHERE id = 'run_open'`,
  )
  await sql(
    'acme',
    `INSERT INTO linked_objects (tenant_id, key, sha256, bytes, content_type) VALUES ('acme', 'given', 'g', 1, 'x'), ('acme', 'found', 'f', 1, 'x')`,
    `INSERT INTO linked_object_runs (tenant_id, run_id, key) VALUES ('acme', 'run_old', 'given'), ('acme', 'run_old', 'found')`,
    `UPDATE runs SET input = '{"attachments": [{"link": {"key": "given"}}]}' WHERE id = 'run_old'`,
    `INSERT INTO tenant_storage (tenant_id, bytes) SELECT 'acme', sum(128 + octet_length(lines)) FROM run_events`,
  )
  assert.equal((await call('PATCH', '/api/tenants/acme', 'default', { legalHold: true })).statusCode, 200)
  const set = await call('PATCH', '/api/tenants/acme', 'default', { retention: { logs: 7, runs: 365 } })
  assert.deepEqual([set.statusCode, set.json().retention], [200, { logs: 7, runs: 365 }])
  const before = await many('run_events')
  await pass()
  assert.equal(await many('run_events'), before, 'a legal hold keeps them')
  await call('PATCH', '/api/tenants/acme', 'default', { legalHold: false })
  await pass()
  assert.equal(await count('globex', 'run_events'), 2 * 121)
  assert.deepEqual([await many('runs'), await many('messages')], [5, 2])
  const rows = (id: string) => many(`run_events WHERE run_id = '${id}'`)
  assert.deepEqual(
    [
      await rows('run_old'),
      await rows('run_talk'),
      await rows('run_short'),
      await rows('run_new'),
      await rows('run_open'),
    ],
    [1, 1, 1, 121, 120],
  )
  const [left] = await database.batch<[{ lines: Buffer; first_seq: number; count: number }[]]>('acme', [
    { text: `SELECT first_seq, count, lines FROM run_events WHERE run_id = 'run_old'` },
  ])
  const events = left[0]!.lines
    .toString()
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.deepEqual([left[0]!.first_seq, left[0]!.count], [121, 2])
  assert.deepEqual(
    events.map(({ type, seq, runId, sessionId }) => [type, seq, runId, sessionId]),
    [
      ['progress', 121, 'run_old', 'sess-run_old'],
      ['result', 122, 'run_old', 'sess-run_old'],
    ],
  )
  assert.deepEqual([events[0].stage, events[1].text], [logDeletedStage, 'the answer \\ 42 ü'])
  // What was stored is what is stored now.
  const differing = `(SELECT bytes - (SELECT sum(128 + octet_length(lines)) FROM run_events) AS more FROM tenant_storage) d WHERE more <> 0`
  assert.equal(await many(differing), 0)
  // Whoever keeps files of runs removes these; an object that only the log had is used by nobody now.
  assert.equal(await many(`erased_runs WHERE run_id IN ('run_old', 'run_talk')`), 2)
  assert.equal(await many('erased_runs'), 2)
  assert.deepEqual(
    [await many(`linked_objects WHERE uses > 0`), await many(`linked_objects WHERE key = 'given'`)],
    [1, 1],
  )
  assert.match(await metrics(), /agent_orc_retention_deleted_total\{kind="logs"\} 2\n/)

  // A later pass does not come back to what it has passed, but for what had not ended by then.
  await sql(
    'acme',
    ...logOf('acme', 'run_old', whole),
    ...run('acme', 'run_next', 8),
    ...logOf('acme', 'run_next', whole),
  )
  await sql('acme', `UPDATE runs SET status = 'ok', finished_at = ${ago(8)} WHERE id = 'run_open'`)
  assert.equal(await many('run_logs_left'), 1)
  await pass()
  assert.deepEqual([await rows('run_old'), await rows('run_next'), await rows('run_open')], [121, 1, 1])
  assert.equal(await many('run_logs_left'), 0)
})

test('without a time of their own event logs stay as long as their runs', async (t) => {
  const { pass, sql, count } = await stage(t, { runs: 30 })
  await sql('acme', ...run('acme', 'run_old', 10), ...logOf('acme', 'run_old', whole))
  await sql('acme', ...run('acme', 'run_older', 40), ...logOf('acme', 'run_older', whole))
  await pass()
  assert.deepEqual([await count('acme', 'runs'), await count('acme', 'run_events')], [1, 121])
})

test('whoever reads a log that was deleted gets what is left of it, and an end', async (t) => {
  const { database, issue, call } = await startConductor(t)
  const { token } = await issue('acme', 'owner')
  await database.batch(
    'acme',
    [...run('acme', 'run_old', 10), ...logOf('acme', 'run_old', whole)].map((text) => ({ text })),
  )
  const before = new Date(Date.now() - 7 * 86_400_000)
  await new Batches(database, 0).all('acme', batchOf('logs', before), new AbortController().signal)
  const get = async (path: string) => {
    const reply = await call(token, 'GET', `/api/runs/run_old${path}`)
    assert.equal(reply.statusCode, 200, path)
    return reply.body
  }
  const detail = JSON.parse(await get(''))
  const shown = (events: { type: string; seq: number }[]) => events.map(({ type, seq }) => [type, seq])
  const expected = [
    ['progress', 121],
    ['result', 122],
  ]
  assert.deepEqual([detail.status, detail.subTask.prompt], ['ok', 'secret of run_old'])
  assert.deepEqual(shown(detail.events), expected)
  for (const after of ['', '?after=50']) {
    const lines = (await get(`/events${after}`)).trimEnd().split('\n')
    assert.deepEqual(shown(lines.map((line) => JSON.parse(line))), expected, after)
  }
  const frames = (await get('/stream')).matchAll(/^id: (\d+)$/gm)
  assert.deepEqual(
    [...frames].map(([, id]) => id),
    ['121', '122'],
  )
})
