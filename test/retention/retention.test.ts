import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { sqlState, type TenantTx } from '#contracts/database'
import { freshDatabase } from '#testing'
import { pass as passOf } from '../../plugins/retention/pass.ts'
import { ago, chat, rolledUp, run, stage } from './stage.ts'

test('what a tenant has a time for goes when it is older, with all that hangs on it; other tenants and kinds stay', async (t) => {
  const { pass, sql, count, call } = await stage(t)
  for (const tenant of ['acme', 'globex']) {
    await sql(tenant, ...run(tenant, 'run_old', 10), ...run(tenant, 'run_new', 2), ...rolledUp(tenant))
  }
  const kept = await call('PATCH', '/api/tenants/acme', 'default', { retention: { runs: 7 } })
  assert.deepEqual([kept.statusCode, kept.json().retention], [200, { runs: 7 }])
  await pass()
  for (const table of ['runs', 'run_events', 'webhook_deliveries', 'run_marks']) {
    assert.deepEqual([await count('acme', table), await count('globex', table)], [1, 2], table)
  }
  // Each kind has its own time.
  assert.deepEqual([await count('acme', 'run_meters'), await count('acme', 'sessions')], [2, 2])
  assert.equal(await count('acme', 'erased_runs'), 1)
  for (const days of [10, 2]) {
    await sql(
      'acme',
      `INSERT INTO workflow_runs (tenant_id, id, name, settings, input, status, unfinished, created_by, created_at, finished_at)
       VALUES ('acme', 'flow${days}', 'w', '{}', 'null', 3, 0, 'k', now() - interval '11 days', now() - interval '${days} days')`,
      `INSERT INTO approvals (tenant_id, id, workflow_run_id, node_id, message, on_expiry)
       VALUES ('acme', 'appr${days}', 'flow${days}', 'n', 'm', 'reject')`,
    )
  }
  const more = { runs: null, meters: 7, sessions: 7, workflows: 7 }
  await call('PATCH', '/api/tenants/acme', 'default', { retention: more })
  await pass()
  assert.deepEqual(
    [
      await count('acme', 'run_meters'),
      await count('acme', 'sessions'),
      await count('acme', 'session_state'),
      await count('acme', 'session_ends'),
      await count('acme', 'workflow_runs'),
      await count('acme', 'approvals'),
    ],
    [1, 1, 1, 1, 1, 1],
  )
  assert.deepEqual((await call('GET', '/api/tenants/acme')).json().retention, {
    meters: 7,
    sessions: 7,
    workflows: 7,
  })
})

test('who keeps data elsewhere is told of a legal hold, and of its end, before the answer and again by each pass', async (t) => {
  const told: unknown[] = []
  const heard = () => told.splice(0).filter((one) => String(one).startsWith('acme'))
  let away = false
  const files = {
    erase: async () => ({ deleted: 0, more: false }),
    async hold(tenantId: string, held: boolean) {
      if (away) throw new Error('no answer')
      told.push([tenantId, held])
    },
  }
  const { pass, call } = await stage(t, {}, undefined, { files })
  const hold = (legalHold: boolean) => call('PATCH', '/api/tenants/acme', 'default', { legalHold })
  assert.equal((await hold(true)).statusCode, 200)
  assert.deepEqual(heard(), [['acme', true]])
  await pass()
  assert.deepEqual(heard(), [['acme', true]])
  away = true
  await assert.rejects(pass())
  const refused = await hold(false)
  assert.deepEqual([refused.statusCode, refused.json().error], [503, 'hold_not_told'])
  assert.equal((await call('GET', '/api/tenants/acme')).json().legalHold, false)
  away = false
  assert.equal((await hold(false)).statusCode, 200)
  assert.deepEqual(heard(), [['acme', false]])
  await pass()
  assert.deepEqual(heard(), [['acme', false]], 'a server that has missed it would keep everything for ever')
  away = true
  await pass()
})

test('the times of the role file are everybody’s, and a tenant may have longer ones', async (t) => {
  const { pass, sql, count, call } = await stage(t, { runs: 7, webhooks: 1 })
  for (const tenant of ['acme', 'globex']) await sql(tenant, ...run(tenant, 'run_old', 10))
  await call('PATCH', '/api/tenants/acme', 'default', { retention: { runs: 30 } })
  await pass()
  assert.deepEqual([await count('acme', 'runs'), await count('globex', 'runs')], [1, 0])
  assert.equal(await count('acme', 'webhook_deliveries'), 0)
})

test('what is under way is not touched: a run, the other runs of its session, a queue, a message to be delivered', async (t) => {
  const { pass, sql, count } = await stage(t, { runs: 1, sessions: 1, messages: 1, webhooks: 1 })
  await sql('acme', ...run('acme', 'run_before', 10, 'sess-busy'), ...run('acme', 'run_waited', 10, 'sess-queue'))
  await sql('acme', ...run('acme', 'run_told', 10), ...chat('acme', 'talk', 10, 'conv_open'))
  await sql(
    'acme',
    `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, started_at, ordinal)
     VALUES ('acme', 'run_now', 'sess-busy', 'p', 'running', 'x', 'x', 2, ${ago(10)}, 2)`,
    `UPDATE sessions SET status = 'running', claim_run = 'run_now', claim_owner = 'x' WHERE id = 'sess-busy'`,
    `INSERT INTO run_queue (tenant_id, session_id, run_id) VALUES ('acme', 'sess-queue', 'run_next')`,
    `UPDATE webhook_deliveries SET state = 'pending' WHERE run_id = 'run_told'`,
    `INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, created_at)
     VALUES ('acme', 'prun_open', 'pub', 'conv_open', 'run_coming', ${ago(10)})`,
  )
  await pass()
  // Of the conversation the runs are their own kind; it itself and its messages stay.
  assert.deepEqual(
    [await count('acme', 'runs'), await count('acme', 'conversations'), await count('acme', 'messages')],
    [4, 1, 2],
  )
  assert.equal(await count('acme', `sessions WHERE id IN ('sess-busy', 'sess-queue')`), 2)
  assert.equal(await count('acme', `webhook_deliveries WHERE state = 'pending'`), 1)
})

test('a conversation goes whole after its last message, with what its session remembers, and can then not go on', async (t) => {
  const { pass, sql, count } = await stage(t, { messages: 7 })
  await sql('acme', ...chat('acme', 'a1', 20, 'conv_old'), ...chat('acme', 'a2', 10, 'conv_old'))
  await sql('acme', ...chat('acme', 'b1', 20, 'conv_new'), ...chat('acme', 'b2', 1, 'conv_new'))
  await pass()
  assert.deepEqual([await count('acme', 'messages'), await count('acme', 'public_runs')], [4, 2])
  assert.equal(await count('acme', `conversations WHERE id = 'conv_new'`), 1)
  assert.equal(await count('acme', `session_state WHERE session_id = 'sess-conv_old'`), 0)
  assert.equal(
    await count('acme', `sessions WHERE id = 'sess-conv_old' AND status = 'shutdown' AND last_prompt IS NULL`),
    1,
  )
  assert.equal(await count('acme', 'conversations'), 1)
})

test('a process that is killed between two batches leaves whole runs, and the next pass goes on', async (t) => {
  const dsn = await freshDatabase(t)
  const { pass, sql, count } = await stage(t, { runs: 1 }, dsn)
  const many = `FROM generate_series(1, 300) n`
  await sql(
    'acme',
    `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, started_at, finished_at, ordinal)
     SELECT 'acme', 'run_' || n, 's', 'p', 'ok', 'x', 'x', 1, ${ago(5)}, ${ago(5)}, n ${many}`,
    `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines) SELECT 'acme', 'run_' || n, 1, 1, 'x' ${many}`,
  )
  // It pauses for so long after its first batch that it is killed there.
  const child = fork(new URL('pass-process.ts', import.meta.url), [dsn])
  const exited = once(child, 'exit')
  const left = () => count('acme', 'runs')
  while ((await left()) === 300) await nextTurn()
  child.kill('SIGKILL')
  assert.equal((await exited)[1], 'SIGKILL')
  const rest = await left()
  assert.ok(rest > 0 && rest < 300, String(rest))
  assert.deepEqual([await count('acme', 'run_events'), await count('acme', 'erased_runs')], [rest, 300 - rest])
  await pass()
  assert.deepEqual([await left(), await count('acme', 'run_events'), await count('acme', 'erased_runs')], [0, 0, 300])
})

test('a legal hold keeps everything, by age and on request, until it is lifted', async (t) => {
  const { pass, sql, count, call } = await stage(t, { runs: 1, messages: 1 })
  await sql('acme', ...chat('acme', 'a', 10, 'conv_a', 'ann'))
  assert.equal((await call('PATCH', '/api/tenants/acme', 'default', { legalHold: true })).json().legalHold, true)
  await pass()
  for (const reply of [
    await call('DELETE', '/api/end-users/ann', 'acme'),
    await call('DELETE', '/api/tenants/acme?erase=true'),
  ]) {
    assert.deepEqual([reply.statusCode, reply.json().error], [409, 'legal_hold'])
    assert.match(reply.json().message, /legalHold/)
  }
  assert.deepEqual([await count('acme', 'runs'), await count('acme', 'messages')], [1, 2])
  assert.equal((await call('GET', '/api/tenants/acme')).json().deletedAt, null)
  await call('PATCH', '/api/tenants/acme', 'default', { legalHold: false })
  await pass()
  assert.deepEqual([await count('acme', 'runs'), await count('acme', 'messages')], [0, 0])
})

test('the audit log lets retention take what is older than 30 days, and nobody anything else', async (t) => {
  const { pass, sql, count } = await stage(t, { audit: 60 })
  const entry = (id: string, days: number) => [
    `INSERT INTO audit_entries (tenant_id, id, at, actor_key, actor_role, action) VALUES ('acme', '${id}', ${ago(days)}, 'k', 'admin', 'a')`,
    `INSERT INTO audit_outcomes (tenant_id, entry_id, at, status) VALUES ('acme', '${id}', ${ago(days)}, 200)`,
  ]
  await sql('acme', ...entry('aud_old', 90), ...entry('aud_mid', 40), ...entry('aud_new', 5))
  const refused = (error: unknown): boolean => sqlState(error) === '42501'
  const open = `SELECT set_config('app.audit_retention', 'on', true)`
  await assert.rejects(sql('acme', 'DELETE FROM audit_outcomes'), refused)
  for (const text of [
    `DELETE FROM audit_outcomes WHERE entry_id = 'aud_new'`,
    `UPDATE audit_entries SET action = 'b'`,
    'TRUNCATE audit_outcomes',
  ]) {
    await assert.rejects(sql('acme', open, text), refused, text)
  }
  await sql('acme', `UPDATE tenants SET legal_hold = true WHERE id = 'acme'`)
  await assert.rejects(sql('acme', open, `DELETE FROM audit_outcomes WHERE entry_id = 'aud_old'`), refused)
  await sql('acme', `UPDATE tenants SET legal_hold = false WHERE id = 'acme'`)
  await pass()
  assert.deepEqual([await count('acme', 'audit_entries'), await count('acme', 'audit_outcomes')], [2, 2])
  assert.equal(await count('acme', `audit_entries WHERE id = 'aud_old'`), 0)
})

test('what cannot be kept for so long is refused when it is said', async (t) => {
  const { call } = await stage(t)
  for (const retention of [{ audit: 29 }, { runs: 0 }, { runs: 40_000 }, { files: 3 }]) {
    const reply = await call('PATCH', '/api/tenants/acme', 'default', { retention })
    assert.equal(reply.statusCode, 400, JSON.stringify(retention))
  }
})

test('the figures say what went, how old the oldest is, and when it last went well', async (t) => {
  const { pass, sql, metrics } = await stage(t, { runs: 7 })
  await sql('acme', ...run('acme', 'run_old', 10), ...run('acme', 'run_new', 2))
  await pass()
  const text = await metrics()
  assert.match(text, /agent_orc_retention_deleted_total\{kind="runs"\} 1\n/)
  const age = Number(/agent_orc_retention_oldest_seconds\{kind="runs"\} ([\d.]+)/.exec(text)![1])
  assert.ok(age > 1.9 * 86_400 && age < 2.1 * 86_400)
  assert.ok(Number(/agent_orc_retention_last_success_seconds ([\d.e+]+)/.exec(text)![1]) > 0)
})

test('plugins are told to let go of what belongs to runs that are gone, in parts, and not under a legal hold', async (t) => {
  const swept: string[] = []
  const sweep = async ({ tenantId }: TenantTx) => {
    swept.push(tenantId)
    return { deleted: 1, more: swept.filter((one) => one === tenantId).length < 3 }
  }
  const erase = async () => ({ deleted: 0, more: false })
  const s = await stage(t, { runs: 5 }, undefined, { 'linked objects': { erase, sweep } })
  await s.sql('acme', ...run('acme', 'old', 9))
  await s.sql('globex', `UPDATE tenants SET legal_hold = true WHERE id = 'globex'`)
  await s.pass()
  assert.deepEqual(
    [swept.filter((one) => one === 'acme').length, swept.includes('globex')],
    [3, false],
    'after what was too old, until nothing is left',
  )
  assert.equal(await s.count('acme', 'runs'), 0)
})

test(
  'a tenant of which there is much to delete keeps no other one waiting: its rest comes behind them',
  { timeout: 30_000 },
  async () => {
    const pages = [['big', 'gone', 'left', 'small'], []]
    const row = { retention: null, legal_hold: false }
    const reads = {
      systemBatch: async () => [pages.shift()!.map((id) => ({ ...row, id, due: id === 'gone' || id === 'left' }))],
      batch: async () => [[{ seconds: 0 }]],
    }
    const done: string[] = []
    let [begun, ended] = [0, 0]
    const parts = {
      database: { as: () => reads },
      batches: {
        async all(id: string, _: unknown, signal: AbortSignal) {
          // Of the first there is more than one turn has time for.
          if (id === 'big' && begun++ === 0) await once(signal, 'abort')
          signal.throwIfAborted()
          if (done.at(-1) !== id) done.push(id)
          return {}
        },
      },
      endUsers: { enter: async () => true, asked: async () => [], resume: async () => {}, leaveLost: async () => {} },
      // Of a tenant that is erased there may be more as well.
      async eraseTenant(id: string, signal: AbortSignal) {
        if (id === 'gone' && ended++ === 0) await once(signal, 'abort')
        signal.throwIfAborted()
        done.push(id)
      },
      defaults: { runs: 1 },
      figures: { begin() {}, oldest() {}, end: (whole: boolean) => done.push(String(whole)) },
      data: new Map(),
      tellHold: async () => {},
      log: { info() {}, warn() {} },
      turnMs: 5,
    }
    await passOf(parts as unknown as Parameters<typeof passOf>[0], new AbortController().signal)
    assert.deepEqual(done, ['small', 'big', 'left', 'gone', 'true'])
  },
)
