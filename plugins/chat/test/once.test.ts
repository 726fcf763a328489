import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '#contracts/database'
import { addKey, framesOf, gateway, type Gateway, publish, type Seeded, sql, until } from './gateway.ts'
import { fail, finish, say } from './scripted-dispatch.ts'

const payload = { message: 'Hi', metadata: { end_user_id: 'ada', order: 1 } }

const chat = (to: Gateway, agent: Seeded, key: string | undefined, body: object = payload, path = '') =>
  to.app.inject({
    method: 'POST',
    url: agent.url + path,
    headers: { ...agent.auth, ...(key === undefined ? {} : { 'idempotency-key': key }) },
    payload: body,
  })
const replayed = (reply: { headers: Record<string, unknown> }): boolean =>
  reply.headers['idempotency-replayed'] === 'true'
const withoutRequestId = (body: string): object => ({ ...(JSON.parse(body) as object), request_id: '' })
const counts = async (database: Database) => {
  const [row] = await sql<{ runs: number; conversations: number; messages: number }>(
    database,
    'acme',
    `SELECT (SELECT count(*)::int FROM public_runs) AS runs, (SELECT count(*)::int FROM conversations) AS conversations,
       (SELECT count(*)::int FROM messages WHERE role = 'user') AS messages`,
  )
  return row
}
const once = { runs: 1, conversations: 1, messages: 1 }
/** Makes the lease of the key run out, as if the gateway whose request holds it had died. */
const expireLeases = (database: Database) =>
  sql(database, 'acme', `UPDATE idempotency_keys SET locked_until = now() - interval '1 second'`)

test('a chat repeated with its key answers the first answer, from any gateway, and is one run', async (t) => {
  const a = await gateway(t)
  const b = await gateway(t, { dsn: a.dsn, dispatch: a.dispatch })
  const agent = await publish(a.database)
  const first = await chat(a, agent, 'order-1')
  assert.deepEqual([first.statusCode, replayed(first)], [200, false])
  for (const to of [a, b]) {
    const again = await chat(to, agent, 'order-1', { metadata: { order: 1, end_user_id: 'ada' }, message: 'Hi' })
    assert.deepEqual([again.statusCode, again.body, replayed(again)], [200, first.body, true])
    assert.equal(again.headers['x-public-run-id'], first.headers['x-public-run-id'])
    const other = await chat(to, agent, 'order-1', { message: 'Hi' })
    assert.deepEqual([other.statusCode, other.json().error], [422, 'idempotency_key_reused'])
  }
  assert.equal(a.dispatch.started.length, 1)
  assert.deepEqual(await counts(a.database), once)
})

test('keys are of one caller: another key of the agent, or no key, begins a run of its own', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database)
  const auth = { authorization: `Bearer ${await addKey(g.database, 'acme', agent.id)}` }
  const bodies = [
    await chat(g, agent, 'k'),
    await chat(g, { ...agent, auth }, 'k'),
    await chat(g, agent, undefined),
    await chat(g, agent, undefined),
    await chat(g, agent, 'k2'),
  ].map((reply) => reply.json().public_run_id)
  assert.equal(new Set(bodies).size, 5)
})

test('a key is 1 to 255 printable ASCII characters; any other is refused before anything begins', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database)
  for (const path of ['', '/stream']) {
    for (const key of ['', 'x'.repeat(256), 'tab\there', 'übel', '\u007f']) {
      const reply = await chat(g, agent, key, payload, path)
      assert.equal(reply.statusCode, 400, JSON.stringify(key))
      assert.deepEqual(
        [reply.json().error, reply.json().issues[0].path],
        ['invalid_request', 'headers/idempotency-key'],
      )
    }
  }
  assert.equal(g.dispatch.started.length, 0)
  for (const key of ['x', 'y'.repeat(255), ' !"#$%&\'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~']) {
    assert.equal((await chat(g, agent, key)).statusCode, 200, key)
  }
})

test('while a synchronous call is under way its repeat answers 409 idempotency_in_flight and when to come back', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database)
  g.dispatch.script = (_task, run) => run().emit(say('wait '))
  const first = chat(g, agent, 'k')
  first.catch(() => {})
  await until(() => g.dispatch.runs.size === 1)
  const early = await chat(g, agent, 'k')
  assert.deepEqual([early.statusCode, early.json().error], [409, 'idempotency_in_flight'])
  assert.match(String(early.headers['retry-after']), /^[1-9]\d*$/)
  g.dispatch.newest().emit(finish('wait for it'))
  const done = await first
  const again = await chat(g, agent, 'k')
  assert.deepEqual([again.statusCode, again.body], [200, done.body])
  assert.deepEqual(await counts(g.database), once)
})

test('a stream repeated with its key is the same stream from its first frame, under way or over, here or elsewhere', async (t) => {
  const a = await gateway(t)
  const b = await gateway(t, { dsn: a.dsn, dispatch: a.dispatch })
  const agent = await publish(a.database)
  a.dispatch.script = (_task, run) => run().emit(say('one '))
  const stream = (to: Gateway) => chat(to, agent, 'k', payload, '/stream')
  const first = stream(a)
  await until(async () => a.dispatch.runs.size === 1 && a.dispatch.newest().followers === 1)
  // How many requests of the key have begun to answer.
  const attempts = async (): Promise<number> => {
    const free = `SELECT attempt FROM idempotency_keys WHERE locked_until IS NULL`
    return (await sql<{ attempt: number }>(a.database, 'acme', free))[0]?.attempt ?? 0
  }
  await until(async () => (await attempts()) === 1)
  const meanwhile = [stream(a)]
  await until(async () => (await attempts()) === 2)
  meanwhile.push(stream(b))
  await until(() => a.dispatch.newest().followers === 2)
  a.dispatch.newest().emit(say('two'))
  a.dispatch.newest().emit(finish('one two'))
  const frames = framesOf((await first).body)
  assert.deepEqual(
    frames.map(({ event }) => event),
    ['delta', 'delta', 'done'],
  )
  const replays = [...(await Promise.all(meanwhile)), await stream(a), await stream(b)]
  for (const reply of replays) {
    assert.deepEqual([reply.statusCode, replayed(reply)], [200, true])
    assert.deepEqual(framesOf(reply.body), frames)
  }
  const sync = await chat(b, agent, 'k')
  assert.deepEqual([sync.statusCode, sync.json().message], [200, 'one two'], 'the synchronous call has the same run')
  assert.deepEqual(await counts(a.database), once)
})

test('a run that failed is repeated as failed; one that was never begun leaves the key unused', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database)
  g.dispatch.script = (_task, run) => run().emit(say('half'), fail('model_error'))
  const failed = await chat(g, agent, 'failed')
  // Its answer is on record: the conductor is not needed.
  g.dispatch.away = true
  const again = await chat(g, agent, 'failed')
  assert.deepEqual([failed.statusCode, again.statusCode, replayed(again)], [502, 502, true])
  assert.deepEqual(withoutRequestId(again.body), withoutRequestId(failed.body))
  assert.equal((await chat(g, agent, 'unused')).statusCode, 502)
  g.dispatch.away = false
  g.dispatch.script = (_task, run) => run().emit(finish('Hello'))
  const unknown = { message: 'Hi', conversation_id: `conv_${'0'.repeat(33)}` }
  for (const body of [unknown, { message: 'nul \0' }]) {
    const refused = await chat(g, agent, 'unused', body)
    assert.ok([404, 400].includes(refused.statusCode))
  }
  assert.equal((await sql(g.database, 'acme', `SELECT FROM idempotency_keys WHERE key = 'unused'`)).length, 0)
  assert.equal((await chat(g, agent, 'unused')).statusCode, 200)
})

test('a start whose answer was lost is repeated into the same run, whether it had begun or not', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database)
  for (const cut of ['before', 'after'] as const) {
    for (const path of ['', '/stream']) {
      g.dispatch.cut = cut
      const lost = await chat(g, agent, cut + path, payload, path)
      assert.equal(lost.statusCode, 502)
      g.dispatch.cut = undefined
      const again = await chat(g, agent, cut + path, payload, path)
      assert.deepEqual([again.statusCode, replayed(again)], [200, true])
      assert.equal(again.headers['x-public-run-id'], lost.json().public_run_id)
      assert.match(again.body, /"message":"Hello"/)
    }
  }
  assert.deepEqual(await counts(g.database), { runs: 4, conversations: 4, messages: 4 })
  // A run that was given up as lost meanwhile is not started again.
  g.dispatch.cut = 'before'
  const lost = await chat(g, agent, 'lost', payload, '/stream')
  const { public_run_id } = lost.json()
  await sql(
    g.database,
    'acme',
    `UPDATE public_runs SET status = 'lost', finished_at = now() WHERE id = $1`,
    public_run_id,
  )
  g.dispatch.cut = undefined
  for (const path of ['', '/stream']) {
    const again = await chat(g, agent, 'lost', payload, path)
    const { error } = again.json()
    assert.deepEqual([again.statusCode, error, replayed(again)], [410, 'lost', true])
    assert.equal(again.json().public_run_id, public_run_id)
  }
})

test('a stream that joined a run which is then taken back is told so, and its key begins the run anew', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database)
  // The first request waits for its answer while the run has a row, and no runner.
  g.dispatch.script = (_task, run) => run().emit({ type: 'progress', stage: 'accepted' })
  const first = chat(g, agent, 'k', payload, '/stream')
  await until(() => g.dispatch.runs.size === 1 && g.dispatch.newest().followers === 1)
  await sql(g.database, 'acme', 'UPDATE idempotency_keys SET locked_until = NULL')
  const joined = chat(g, agent, 'k', payload, '/stream')
  await until(() => g.dispatch.newest().followers === 2)
  await g.dispatch.newest().takeBack()
  for (const { body } of await Promise.all([first, joined])) {
    assert.match(body, /event: error\ndata: {"code":"upstream","message":"[^"]*Send the message again/)
    assert.doesNotMatch(body, /: closing/)
  }
  g.dispatch.script = (_task, run) => run().emit(finish('Hello'))
  const again = await chat(g, agent, 'k', payload, '/stream')
  assert.match(again.body, /event: done\ndata: .*"message":"Hello"/)
  assert.deepEqual(await counts(g.database), once)
})

test('a message refused because its conversation is busy may be sent again with the same key', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database)
  g.dispatch.script = (_task, run) => run().emit(say('busy'))
  const first = chat(g, agent, undefined)
  first.catch(() => {})
  await until(() => g.dispatch.runs.size === 1)
  const [row] = await sql<{ id: string }>(g.database, 'acme', 'SELECT id FROM conversations')
  const next = { message: 'and?', conversation_id: row!.id }
  assert.equal((await chat(g, agent, 'k', next)).json().error, 'conversation_busy')
  g.dispatch.newest().emit(finish('done'))
  await first
  g.dispatch.script = (_task, run) => run().emit(finish('next'))
  const later = await chat(g, agent, 'k', next)
  assert.deepEqual([later.statusCode, later.json().message, replayed(later)], [200, 'next', false])
})

test('after 504 sync_timeout the repeat waits for the same run', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database, { syncSeconds: 1 })
  g.dispatch.script = (_task, run) => run().emit(say('slow '))
  const first = await chat(g, agent, 'k')
  assert.deepEqual([first.statusCode, first.json().error], [504, 'sync_timeout'])
  const again = chat(g, agent, 'k')
  again.catch(() => {})
  g.dispatch.newest().emit(finish('slow but sure'))
  assert.deepEqual((await again).json(), {
    conversation_id: first.json().conversation_id,
    message: 'slow but sure',
    public_run_id: first.json().public_run_id,
  })
  assert.deepEqual(await counts(g.database), once)
})

test('fifty repeats at once through two gateways are one run', async (t) => {
  const a = await gateway(t)
  const b = await gateway(t, { dsn: a.dsn, dispatch: a.dispatch })
  const agent = await publish(a.database)
  const replies = await Promise.all(Array.from({ length: 50 }, (_, i) => chat(i % 2 === 0 ? a : b, agent, 'k')))
  const answers = replies.filter((reply) => reply.statusCode === 200)
  assert.ok(answers.length > 0)
  assert.equal(new Set(answers.map((reply) => reply.body)).size, 1)
  for (const reply of replies) {
    if (reply.statusCode !== 200)
      assert.deepEqual([reply.statusCode, reply.json().error], [409, 'idempotency_in_flight'])
  }
  assert.equal(answers.filter((reply) => !replayed(reply)).length, 1)
  assert.equal(a.dispatch.started.length, 1)
  assert.deepEqual(await counts(a.database), once)
})

test('after its gateway died a request is repeated into the same run, wherever it had got to', async (t) => {
  const a = await gateway(t)
  const b = await gateway(t, { dsn: a.dsn, dispatch: a.dispatch })
  const agent = await publish(a.database)
  a.dispatch.script = (_task, run) => run().emit(say('on '))

  // The run is under way and the first request hangs in `a`, which counts as dead once its lease has run out.
  const lost = chat(a, agent, 'under-way')
  lost.catch(() => {})
  await until(() => a.dispatch.runs.size === 1)
  await expireLeases(a.database)
  const again = chat(b, agent, 'under-way')
  again.catch(() => {})
  await until(async () => (await sql(a.database, 'acme', `SELECT FROM idempotency_keys WHERE attempt = 2`)).length > 0)
  a.dispatch.newest().emit(finish('on and on'))
  assert.deepEqual([(await again).statusCode, (await again).body], [200, (await lost).body])

  // Nothing but the key was written.
  a.dispatch.script = (_task, run) => run().emit(finish('Hello'))
  const first = await chat(b, agent, 'planned')
  const ids = first.json<{ public_run_id: string; conversation_id: string }>()
  await sql(a.database, 'acme', `DELETE FROM public_runs WHERE id = $1`, ids.public_run_id)
  await sql(a.database, 'acme', `DELETE FROM messages WHERE public_run_id = $1`, ids.public_run_id)
  await sql(a.database, 'acme', `DELETE FROM conversations WHERE id = $1`, ids.conversation_id)
  const begun = await chat(a, agent, 'planned')
  assert.deepEqual([begun.statusCode, begun.body, replayed(begun)], [200, first.body, false])
  assert.equal(a.dispatch.runs.size, 2, 'one run for each key')
})
