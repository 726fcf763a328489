import assert from 'node:assert/strict'
import { once } from 'node:events'
import { get, type IncomingMessage, type ServerResponse } from 'node:http'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { EndUserData } from '#contracts/retention'
import { fake } from '#testing'
import approvals from '../../plugins/approvals/index.ts'
import { theirs } from '../../plugins/approvals/store.ts'
import { watchReads } from '../reads.ts'
import { chat, rolledUp, run, stage } from './stage.ts'

test('an end user is erased whole, with what their runs delegated; other people and other tenants stay; meters stay', async (t) => {
  const { sql, count, call, database } = await stage(t)
  await sql('acme', ...chat('acme', 'a1', 1, 'conv_a', 'ann'), ...chat('acme', 'a2', 0, 'conv_a', 'ann'))
  await sql('acme', ...run('acme', 'run_child', 0, 'sess-run_child', { parent: 'run_a2' }))
  await sql('acme', ...chat('acme', 'b1', 0, 'conv_b', 'bob'), ...chat('acme', 'c1', 0, 'conv_c'))
  await sql('globex', ...chat('globex', 'g1', 0, 'conv_a', 'ann'))
  await sql(
    'acme',
    `INSERT INTO idempotency_keys (tenant_id, scope, key, fingerprint, plan, answer, expires_at)
     VALUES ('acme', 's', 'k', 'x', '{"runId": "run_a1"}', '"secret of a1"', now() + interval '1 day')`,
  )
  for (const tenant of ['acme', 'globex']) await sql(tenant, ...rolledUp(tenant))
  const reply = await call('DELETE', '/api/end-users/ann', 'acme')
  assert.equal(reply.statusCode, 200)
  assert.deepEqual(reply.json(), {
    endUserId: 'ann',
    conversations: 1,
    messages: 4,
    runs: 3,
    sessions: 2,
    data: {},
    pending: 0,
  })
  for (const table of [
    'conversations',
    'public_runs',
    'runs',
    'run_events',
    'sessions',
    'session_state',
    'session_ends',
    'run_marks',
    'webhook_deliveries',
  ]) {
    assert.deepEqual([await count('acme', table), await count('globex', table)], [2, 1], table)
  }
  assert.deepEqual([await count('acme', 'idempotency_keys'), await count('acme', 'end_user_erasures')], [0, 0])
  assert.equal(await count('acme', 'run_meters'), 5)
  for (const secret of ['a1', 'a2', 'run_child']) {
    for (const table of ['messages', 'runs', 'run_events', 'sessions', 'session_state']) {
      const look = {
        text: `SELECT 1 FROM ${table} t WHERE position($1 IN t::text) > 0`,
        values: [`secret of ${secret}`],
      }
      assert.deepEqual(await database.batch('acme', [look]), [[]], `${table} ${secret}`)
    }
  }
  // Files of runs go by these notes.
  assert.equal(await count('acme', 'erased_runs'), 3)
  const again = await call('DELETE', '/api/end-users/ann', 'acme')
  assert.deepEqual([again.statusCode, again.json().error], [404, 'not_found'])
})

test('what an end user has spent of budgets goes with them, and not before what is held for a run of theirs is given back', async (t) => {
  const { sql, count, call, pass } = await stage(t)
  await sql(
    'acme',
    ...chat('acme', 'a1', 0, 'conv_a', 'ann'),
    `INSERT INTO billing_budgets (tenant_id, id, scope, subject, per, cap) VALUES ('acme', 'bud_1', 'end_user', '*', 'day', 100), ('acme', 'bud_2', 'profile', '*', 'day', 100)`,
    `INSERT INTO billing_budget_uses (tenant_id, budget_id, subject, period, spent, held)
     VALUES ('acme', 'bud_1', 'ann', now(), 5, 1), ('acme', 'bud_1', 'bob', now(), 5, 0), ('acme', 'bud_2', 'ann', now(), 5, 0)`,
  )
  const erased = (await call('DELETE', '/api/end-users/ann', 'acme')).json<{ conversations: number; pending: number }>()
  assert.deepEqual([erased.conversations, erased.pending], [1, 1], 'a run of the API is under way')
  assert.equal(await count('acme', 'billing_budget_uses'), 3)
  await sql('acme', 'UPDATE billing_budget_uses SET held = 0')
  await pass()
  assert.deepEqual([await count('acme', 'billing_budget_uses'), await count('acme', 'end_user_erasures')], [2, 0])
})

test('a legal hold that is set while an erasure goes on stops it before the data of the next plugin', async (t) => {
  const held = fake(EndUserData, {
    first: {
      async *items() {
        yield [{}]
      },
      async erase() {
        await sql('acme', "UPDATE tenants SET legal_hold = true WHERE id = 'acme'")
        return 0
      },
    },
  })
  const { sql, count, call } = await stage(t, {}, undefined, {}, [held, approvals])
  await sql(
    'acme',
    ...chat('acme', 'a1', 0, 'conv_a', 'ann'),
    `INSERT INTO approvals (tenant_id, id, run_id, end_user_id, message, status, on_expiry)
     VALUES ('acme', 'apr_1', 'run_a1', 'ann', 'May I?', 'approved', 'reject')`,
  )
  const refused = await call('DELETE', '/api/end-users/ann', 'acme')
  assert.deepEqual([refused.statusCode, refused.json().error], [409, 'legal_hold'])
  assert.deepEqual([await count('acme', 'approvals'), await count('acme', 'messages')], [1, 2])
})

test('a legal hold that is set while an erasure goes on keeps the webhook messages and the uses of budgets', async (t) => {
  let late = false
  const held = fake(EndUserData, {
    late: {
      async *items() {
        yield [{}]
      },
      async erase() {
        // The second time is after the runs, and before what is looked for at the end.
        if (late) await sql('acme', "UPDATE tenants SET legal_hold = true WHERE id = 'acme'")
        late = true
        return 0
      },
    },
  })
  const { sql, count, call } = await stage(t, {}, undefined, {}, [held])
  await sql(
    'acme',
    `INSERT INTO webhook_deliveries (tenant_id, id, url, body) VALUES ('acme', 'm', 'https://x.example', '{"data":{"endUserId":"ann"}}')`,
    `INSERT INTO billing_budgets (tenant_id, id, scope, subject, per, cap) VALUES ('acme', 'bud_1', 'end_user', '*', 'day', 100)`,
    `INSERT INTO billing_budget_uses (tenant_id, budget_id, subject, period) VALUES ('acme', 'bud_1', 'ann', now())`,
  )
  assert.equal((await call('DELETE', '/api/end-users/ann', 'acme')).statusCode, 409)
  assert.deepEqual([await count('acme', 'webhook_deliveries'), await count('acme', 'billing_budget_uses')], [1, 1])
})

test('somebody else’s end user is an unknown one', async (t) => {
  const { sql, count, call } = await stage(t)
  await sql('globex', ...chat('globex', 'g1', 0, 'conv_g', 'gina'))
  const comparable = ({ statusCode, body }: { statusCode: number; body: string }) => [
    statusCode,
    body.replace(/"request_id":"[^"]*"/, ''),
  ]
  for (const [method, more] of [
    ['DELETE', ''],
    ['GET', '/export'],
  ] as const) {
    const foreign = await call(method, `/api/end-users/gina${more}`, 'acme')
    assert.equal(foreign.statusCode, 404)
    assert.deepEqual(comparable(foreign), comparable(await call(method, `/api/end-users/nobody${more}`, 'acme')))
  }
  assert.equal((await call('DELETE', '/api/end-users/%00', 'acme')).statusCode, 404)
  assert.equal(await count('globex', 'messages'), 2)
})

test('what is under way is erased when it is over, by the next pass, which puts it on record', async (t) => {
  const { sql, count, call, pass } = await stage(t)
  await sql('acme', ...chat('acme', 'a', 0, 'conv_a', 'ann'), ...chat('acme', 'b', 0, 'conv_b', 'ann'))
  await sql(
    'acme',
    `UPDATE sessions SET status = 'running', claim_run = 'run_b', claim_owner = 'x' WHERE id = 'sess-conv_b'`,
  )
  const reply = (await call('DELETE', '/api/end-users/ann', 'acme')).json()
  assert.deepEqual([reply.conversations, reply.pending], [1, 1])
  await pass()
  assert.deepEqual([await count('acme', 'conversations'), await count('acme', 'messages')], [1, 2])
  await sql(
    'acme',
    `UPDATE sessions SET status = 'idle', claim_run = NULL, claim_owner = NULL WHERE id = 'sess-conv_b'`,
  )
  await pass()
  assert.deepEqual(
    [await count('acme', 'conversations'), await count('acme', 'messages'), await count('acme', 'runs')],
    [0, 0, 0],
  )
  assert.equal(await count('acme', 'end_user_erasures'), 0)
  const [entry] = (await call('GET', '/api/audit', 'acme')).json()
  assert.deepEqual(
    [entry.action, entry.target, entry.status, entry.detail.conversations],
    ['end-users.erased', 'ann', 200, 2],
    'the entry of the end counts what all passes have deleted',
  )
})

test('an export has all of an end user and nothing of anybody else, however much it is', async (t) => {
  const { sql, call } = await stage(t)
  for (let i = 0; i < 60; i++) await sql('acme', ...chat('acme', `a${i}`, 0, `conv_${i % 3}`, 'ann'))
  await sql('acme', ...chat('acme', 'bob1', 0, 'conv_bob', 'bob'))
  const reply = await call('GET', '/api/end-users/ann/export', 'acme')
  assert.equal(reply.statusCode, 200)
  const { endUserId, items } = reply.json()
  const counts = Object.groupBy(items as { type: string }[], ({ type }) => type)
  assert.equal(endUserId, 'ann')
  assert.deepEqual(Object.fromEntries(Object.entries(counts).map(([type, all]) => [type, all!.length])), {
    conversation: 3,
    message: 120,
    run: 60,
    events: 60,
  })
  assert.ok(!reply.body.includes('bob'))
  for (let i = 0; i < 60; i++)
    assert.ok(reply.body.includes(`secret of a${i}"`) || reply.body.includes(`secret of run_a${i}"`), String(i))
})

test('an export of megabytes is read by and by: a part when the one before was taken, and none of them is large', async (t) => {
  const { sql, app, database } = await stage(t)
  await sql(
    'acme',
    ...chat('acme', 'a', 0, 'conv_a', 'ann'),
    `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
     SELECT 'acme', 'run_a', n, 1, convert_to(json_build_object('seq', n, 'text', repeat('é', 50000))::text || chr(10), 'UTF8') FROM generate_series(2, 121) n`,
    `INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content)
     SELECT 'acme', 'conv_a', 'prun_more' || n, 'assistant', n || repeat('é', 250000) FROM generate_series(1, 40) n`,
  )
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  const answers: ServerResponse[] = []
  app.server.on('request', (_: IncomingMessage, answer: ServerResponse) => answers.push(answer))
  const reads = watchReads(t, database)
  const request = get(`${url}/api/end-users/ann/export`, { headers: { tenant: 'acme' } })
  const [reply] = (await once(request, 'response')) as [IncomingMessage]
  reply.pause()
  // Full is full: what the sockets between take is taken, and nothing more is read.
  for (let still = 0; still < 200; await setImmediate()) still = answers[0]!.writableNeedDrain ? still + 1 : 0
  const before = reads.count
  assert.equal(reads.underWay, 0)
  let text = ''
  reply.setEncoding('utf8').on('data', (part: string) => (text += part))
  reply.resume()
  await once(reply, 'end')
  const { items } = JSON.parse(text) as { items: { type: string }[] }
  const of = (type: string): number => items.filter((one) => one.type === type).length
  assert.deepEqual([of('message'), of('run'), of('events')], [42, 1, 121])
  assert.ok(before < reads.count - 100, `${before} of ${reads.count} reads before anybody took any`)
  // In this form a byte of a log has four characters.
  assert.ok(reads.largest.bytes < 2 * 1024 * 1024, `a read of ${reads.largest.bytes} bytes`)
})

test('approvals are exported by their bytes, and erased some at a time', async (t) => {
  const { sql, call, database } = await stage(t, {}, undefined, {}, [approvals])
  const approved = (id: string, who: string, times: number, argument: string): string =>
    `INSERT INTO approvals (tenant_id, id, run_id, end_user_id, message, status, on_expiry, arguments)
     SELECT 'acme', '${id}' || lpad(n::text, 4, '0'), 'run_a1', '${who}', 'May I?', 'approved', 'reject', ${argument} FROM generate_series(1, ${times}) n`
  await sql(
    'acme',
    ...chat('acme', 'a1', 0, 'conv_a', 'ann'),
    approved('apr_large', 'ann', 12, `json_build_object('text', repeat('x', 700000))::text`),
    approved('apr_small', 'ann', 230, 'NULL'),
  )
  const reads = watchReads(t, database)
  const { items } = (await call('GET', '/api/end-users/ann/export', 'acme')).json<{
    items: Record<string, unknown>[]
  }>()
  const found = items.filter(({ type }) => type === 'approval')
  assert.equal(new Set(found.map(({ id }) => id)).size, 242)
  assert.equal(found.length, 242)
  assert.ok(reads.largest.bytes < 1024 * 1024, `a read of ${reads.largest.bytes} bytes`)
  // Row security keeps most functions from being used as conditions of an index.
  const explain = { text: `EXPLAIN SELECT FROM approvals WHERE ${theirs}`, values: ['acme', 'ann'] }
  const byIndex = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`
  const [, plan] = await database.batch<object[][]>('acme', [{ text: byIndex }, explain])
  assert.match(JSON.stringify(plan), /approvals_of_person.*Index Cond: [^"]*md5/)
  const erased = (await call('DELETE', '/api/end-users/ann', 'acme')).json<{ data: object }>()
  assert.deepEqual(erased.data, { approval: 242 })
})

test('an export is a document also of a conversation whose row retention has just deleted', async (t) => {
  const { sql, call } = await stage(t)
  await sql('acme', ...chat('acme', 'a1', 0, 'conv_a', 'ann'), `DELETE FROM conversations`)
  const { items } = (await call('GET', '/api/end-users/ann/export', 'acme')).json<{ items: { type: string }[] }>()
  assert.deepEqual(
    items.map(({ type }) => type),
    ['message', 'message', 'run', 'events'],
  )
})

test('runs that name an end user are theirs without a conversation: erased with what they delegated, exported, and not those of others', async (t) => {
  const { sql, count, call } = await stage(t)
  const ann = { endUser: 'ann' }
  await sql(
    'acme',
    ...run('acme', 'run_api', 0, 'sess-api', ann),
    ...run('acme', 'run_child', 0, 'sess-child', { ...ann, parent: 'run_api' }),
    ...chat('acme', 'a1', 0, 'conv_a', 'ann'),
    ...run('acme', 'run_bob', 0, 'sess-bob', { endUser: 'bob' }),
    ...run('acme', 'run_nobody', 0),
  )
  await sql('globex', ...run('globex', 'run_api', 0, 'sess-api', ann))
  const exported = (await call('GET', '/api/end-users/ann/export', 'acme')).json<{ items: Record<string, unknown>[] }>()
  const ids = (type: string) => exported.items.flatMap((one) => (one['type'] === type ? String(one['runId']) : []))
  assert.deepEqual([ids('run'), ids('events')], Array(2).fill(['run_a1', 'run_api', 'run_child']))
  assert.deepEqual((await call('DELETE', '/api/end-users/ann', 'acme')).json(), {
    endUserId: 'ann',
    conversations: 1,
    messages: 2,
    runs: 3,
    sessions: 3,
    data: {},
    pending: 0,
  })
  for (const table of ['runs', 'run_events', 'sessions', 'session_state', 'webhook_deliveries'])
    assert.deepEqual([await count('acme', table), await count('globex', table)], [2, 1], table)
  assert.deepEqual([await count('acme', 'run_people'), await count('acme', 'erased_runs')], [1, 3])
  assert.equal((await call('DELETE', '/api/end-users/ann', 'acme')).statusCode, 404)
})

test('an end user is still found when retention has deleted the messages and kept the runs', async (t) => {
  const { sql, count, call, pass } = await stage(t, { messages: 7 })
  await sql('acme', ...chat('acme', 'a1', 20, 'conv_a', 'ann'))
  await pass()
  assert.deepEqual([await count('acme', 'public_runs'), await count('acme', 'runs')], [0, 1])
  const exported = await call('GET', '/api/end-users/ann/export', 'acme')
  assert.ok(exported.body.includes('secret of run_a1'))
  const erased = (await call('DELETE', '/api/end-users/ann', 'acme')).json()
  assert.deepEqual([erased.runs, erased.sessions, erased.pending], [1, 1, 0])
  assert.deepEqual([await count('acme', 'runs'), await count('acme', 'run_events')], [0, 0])
})

test('a run under way, one whose session executes or waits, and one that a workflow has still to read are erased when that is over', async (t) => {
  const { sql, count, call, pass } = await stage(t)
  const ann = { endUser: 'ann' }
  await sql(
    'acme',
    ...run('acme', 'run_own', 0, 'sess-own', ann),
    ...run('acme', 'run_shared', 0, 'sess-shared', ann),
    ...run('acme', 'run_line', 0, 'sess-line', ann),
    ...run('acme', 'run_parent', 0, 'sess-parent', ann),
    ...run('acme', 'run_child', 0, 'sess-child', { ...ann, parent: 'run_parent' }),
    ...run('acme', 'run_node', 0, 'sess-node', { ...ann, parent: 'flow' }),
    `INSERT INTO workflow_runs (tenant_id, id, name, settings, input, status, unfinished, created_by)
     VALUES ('acme', 'flow', 'w', '{}', 'null', 2, 1, 'k')`,
    `INSERT INTO workflow_nodes (tenant_id, run_id, id, position, type, spec, status, waits_for)
     VALUES ('acme', 'flow', 'n', 0, 'agent', '{}', 2, 'run_node')`,
    `UPDATE runs SET status = 'running', finished_at = NULL WHERE id = 'run_child'`,
    `UPDATE sessions SET status = 'running', claim_run = 'run_of_bob', claim_owner = 'x' WHERE id = 'sess-shared'`,
    `INSERT INTO run_queue (tenant_id, session_id, run_id) VALUES ('acme', 'sess-line', 'run_next')`,
  )
  const erased = (await call('DELETE', '/api/end-users/ann', 'acme')).json()
  assert.deepEqual([erased.runs, erased.sessions, erased.pending], [1, 1, 4])
  assert.deepEqual([await count('acme', 'runs'), await count('acme', 'session_state')], [5, 5])
  await sql(
    'acme',
    `UPDATE runs SET status = 'ok', finished_at = now() WHERE id = 'run_child'`,
    `UPDATE sessions SET status = 'idle', claim_run = NULL, claim_owner = NULL WHERE id = 'sess-shared'`,
    'DELETE FROM run_queue',
    `UPDATE workflow_nodes SET status = 3, waits_for = NULL`,
  )
  await pass()
  for (const table of ['runs', 'run_events', 'session_state', 'run_people', 'run_children', 'end_user_erasures'])
    assert.equal(await count('acme', table), 0, table)
})

test('runs of a release that named nobody in a column of its own are found by their metadata', async (t) => {
  const { sql, count, call, database } = await stage(t)
  const metadata = {
    run_old: '{"end_user_id":"ann","note":"a\\u0000b \\ud800"}',
    run_nested: '{"about":{"end_user_id":"ann"}}',
    run_number: '{"end_user_id":7}',
    run_bob: '{"end_user_id":"bob"}',
    run_large: `{"end_user_id":"carl","text":"${'x'.repeat(5_000_000)}"}`,
  }
  for (const [id, text] of Object.entries(metadata)) {
    await sql('acme', ...run('acme', id, 1))
    await database.batch('acme', [
      { text: 'UPDATE runs SET metadata = $2::text::json WHERE id = $1', values: [id, text] },
    ])
  }
  await sql('acme', ...Array.from({ length: 1_200 }, (_, i) => run('acme', `run_${i}`, 1)[2]!))
  assert.ok((await call('GET', '/api/end-users/carl/export', 'acme')).body.includes('run_large'))
  const erased = (await call('DELETE', '/api/end-users/ann', 'acme')).json()
  assert.deepEqual([erased.runs, erased.pending], [1, 0])
  assert.equal(await count('acme', `runs WHERE id IN ('run_old', 'run_nested', 'run_number', 'run_bob')`), 3)
  assert.deepEqual([await count('acme', 'run_people'), await count('acme', 'run_people_entered')], [2, 1])
  // A day after the upgrade nothing is looked for any more.
  await database.systemBatch([{ text: `UPDATE schema_migrations SET applied_at = now() - interval '2 days'` }])
  assert.equal((await call('DELETE', '/api/end-users/ann', 'acme')).statusCode, 404)
  assert.equal(await count('acme', `run_people_entered WHERE started_at = 'infinity'`), 1)
})

test('a person of whom only webhook messages or spent budgets are left is exported and erased, and a message about a budget names them, too', async (t) => {
  const { sql, count, call } = await stage(t)
  const message = (tenant: string, id: string, data: object) =>
    `INSERT INTO webhook_deliveries (tenant_id, id, url, state, body)
     VALUES ('${tenant}', '${id}', 'https://x.example', 'delivered', '${JSON.stringify({ type: 'x', data })}')`
  const budgets = `INSERT INTO billing_budgets (tenant_id, id, scope, subject, per, cap) VALUES ('acme', 'bud_1', 'end_user', '*', 'day', 100)`
  const ann = 'a"nn'
  await sql(
    'acme',
    budgets,
    message('acme', 'msg_1', { endUserId: ann }),
    message('acme', 'msg_2', { scope: 'end_user', subject: ann }),
    message('acme', 'msg_3', { scope: 'profile', subject: ann }),
    message('acme', 'msg_4', { endUserId: 'bob', about: ann }),
    `INSERT INTO billing_budget_uses (tenant_id, budget_id, subject, period, spent) VALUES ('acme', 'bud_1', 'carl', now(), 5000000)`,
  )
  await sql('globex', message('globex', 'msg_1', { endUserId: ann }))
  const of = (id: string) => `/api/end-users/${encodeURIComponent(id)}`
  const items = async (id: string) => (await call('GET', `${of(id)}/export`, 'acme')).json().items
  assert.deepEqual(
    (await items(ann)).map(
      ({ type, id, message: { data } }: { type: string; id: string; message: { data: object } }) => [type, id, data],
    ),
    [
      ['webhook', 'msg_1', { endUserId: ann }],
      ['webhook', 'msg_2', { scope: 'end_user', subject: ann }],
    ],
  )
  // Also of a budget that is gone, until the ledger's upkeep has deleted its uses.
  await sql('acme', 'DELETE FROM billing_budgets')
  const [spent] = await items('carl')
  assert.deepEqual([spent.type, spent.budgetId, spent.spentCents], ['budgetUse', 'bud_1', 5])
  for (const id of [ann, 'carl']) {
    const erased = await call('DELETE', of(id), 'acme')
    assert.deepEqual([erased.statusCode, erased.json().pending], [200, 0], id)
    assert.equal((await call('DELETE', of(id), 'acme')).statusCode, 404, id)
  }
  assert.deepEqual([await count('acme', 'webhook_deliveries'), await count('globex', 'webhook_deliveries')], [2, 1])
  assert.equal(await count('acme', 'billing_budget_uses'), 0)
})
