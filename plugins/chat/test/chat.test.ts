import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import { gateway, publish, sql, until } from './gateway.ts'
import { fail, finish, say } from './scripted-dispatch.ts'

test('a chat without a conversation begins one and answers with both ids', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const reply = await app.inject({
    method: 'POST',
    url: agent.url,
    headers: agent.auth,
    payload: { message: 'Hi', metadata: { end_user_id: 'u-1', plan: 'pro' } },
  })
  assert.equal(reply.statusCode, 200)
  const body = reply.json()
  assert.deepEqual(Object.keys(body).sort(), ['conversation_id', 'message', 'public_run_id'])
  assert.match(body.conversation_id, /^conv_/)
  assert.match(body.public_run_id, /^prun_/)
  assert.equal(body.message, 'Hello')
  assert.equal(reply.headers['x-public-run-id'], body.public_run_id)
  assert.equal(reply.headers['x-conversation-id'], body.conversation_id)
  const [task] = dispatch.started
  assert.equal(task?.profile, agent.id)
  assert.equal(task?.prompt, 'Hi')
  assert.equal(task?.sessionId, undefined)
  assert.deepEqual(task?.metadata, {
    end_user_id: 'u-1',
    plan: 'pro',
    conversation_id: body.conversation_id,
    public_run_id: body.public_run_id,
  })
  assert.deepEqual(task?.chat, {
    publicRunId: body.public_run_id,
    conversationId: body.conversation_id,
    publishedId: agent.id,
    continued: false,
    keyId: task.chat?.keyId,
    endUserId: 'u-1',
  })
  assert.match(task.chat?.keyId ?? '', /^key_/)
  const [stored] = await sql<{ end_user_id: string }>(database, 'acme', 'SELECT end_user_id FROM conversations')
  assert.equal(stored?.end_user_id, 'u-1')
})

test('an empty end_user_id names nobody, so that what visitors without a name say is nobody’s', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const payload = { message: 'Hi', metadata: { end_user_id: '' } }
  const reply = await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  assert.equal(reply.statusCode, 200)
  assert.deepEqual(
    [dispatch.started[0]?.chat?.endUserId, dispatch.started[0]?.metadata?.['end_user_id']],
    [undefined, ''],
  )
  assert.deepEqual(await sql(database, 'acme', 'SELECT end_user_id FROM conversations'), [{ end_user_id: null }])
  assert.deepEqual(await sql(database, 'acme', 'SELECT end_user_id FROM public_runs'), [{ end_user_id: null }])
})

test('a conversation goes on under its id, with its messages in order', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const post = (payload: object) => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  const first = (await post({ message: 'one' })).json()
  dispatch.script = (task, run) => run().emit(finish(`again ${task.prompt}`))
  const second = (await post({ message: 'two', conversation_id: first.conversation_id })).json()
  assert.equal(second.conversation_id, first.conversation_id)
  assert.notEqual(second.public_run_id, first.public_run_id)
  // The conductor finds the session by the conversation.
  const { sessionId, chat } = dispatch.started[1]!
  assert.deepEqual([sessionId, chat?.conversationId, chat?.continued], [undefined, first.conversation_id, true])
  const history = await app.inject({ url: `${agent.url}/conversations/${first.conversation_id}`, headers: agent.auth })
  assert.deepEqual(
    history.json().messages.map(({ at, ...message }: { at: string }) => {
      assert.match(at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
      return message
    }),
    [
      { role: 'user', content: 'one' },
      { role: 'assistant', content: 'Hello', public_run_id: first.public_run_id },
      { role: 'user', content: 'two' },
      { role: 'assistant', content: 'again two', public_run_id: second.public_run_id },
    ],
  )
})

test('a failed run answers 502 upstream with its ids and nothing internal', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  dispatch.script = (_task, run) => run().emit(say('so far'), fail('model_error'))
  const reply = await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload: { message: 'Hi' } })
  assert.equal(reply.statusCode, 502)
  const { error, message, public_run_id, conversation_id } = reply.json()
  assert.equal(error, 'upstream')
  assert.match(public_run_id, /^prun_/)
  assert.match(conversation_id, /^conv_/)
  assert.equal(message, 'The agent could not answer.')
  assert.doesNotMatch(reply.body, /provider|sess-|http:/)
})

test('a run longer than syncMaxDurationSeconds answers 504 sync_timeout and goes on', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database, { syncSeconds: 1 })
  dispatch.script = (_task, run) => run().emit(say('thinking'))
  const reply = await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload: { message: 'Hi' } })
  assert.equal(reply.statusCode, 504)
  const { error, public_run_id, conversation_id } = reply.json()
  assert.equal(error, 'sync_timeout')
  assert.match(conversation_id, /^conv_/)
  const get = () => app.inject({ url: `${agent.url}/runs/${public_run_id}`, headers: agent.auth })
  const pending = await get()
  assert.equal(pending.statusCode, 202)
  assert.deepEqual(pending.json(), { public_run_id, conversation_id, status: 'running' })
  dispatch.newest().emit(finish('done at last'))
  await until(async () => (await get()).statusCode === 200)
  assert.deepEqual((await get()).json(), { public_run_id, conversation_id, message: 'done at last', status: 'ok' })
  assert.deepEqual(dispatch.cancelled, [])
})

test('a second message while a run is under way answers 409 conversation_busy and leaves no trace', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  dispatch.script = (_task, run) => run().emit(say('…'))
  const post = (payload: object) => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  const first = post({ message: 'one' })
  await until(() => dispatch.runs.size === 1)
  const [{ id: conversation_id } = { id: '' }] = await sql<{ id: string }>(
    database,
    'acme',
    'SELECT id FROM conversations',
  )
  const second = await post({ message: 'two', conversation_id })
  assert.equal(second.statusCode, 409)
  assert.equal(second.json().error, 'conversation_busy')
  dispatch.newest().emit(finish('one done'))
  assert.equal((await first).statusCode, 200)
  dispatch.script = (_task, run) => run().emit(finish('three done'))
  assert.equal((await post({ message: 'three', conversation_id })).statusCode, 200)
  const contents = await sql<{ content: string }>(database, 'acme', 'SELECT content FROM messages ORDER BY position')
  assert.deepEqual(
    contents.map((row) => row.content),
    ['one', 'one done', 'three', 'three done'],
  )
})

test('a session that is busy at the conductor is a busy conversation too', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const post = (payload: object) => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  const { conversation_id } = (await post({ message: 'one' })).json()
  dispatch.script = () => {
    throw new AppError('session_busy', 409)
  }
  for (const path of ['', '/stream']) {
    const reply = await app.inject({
      method: 'POST',
      url: agent.url + path,
      headers: agent.auth,
      payload: { message: 'two', conversation_id },
    })
    assert.equal(reply.statusCode, 409)
    assert.equal(reply.json().error, 'conversation_busy')
  }
  const rows = await sql(database, 'acme', `SELECT 1 FROM messages WHERE content = 'two'`)
  assert.equal(rows.length, 0)
  assert.equal((await sql(database, 'acme', 'SELECT 1 FROM public_runs')).length, 1)
})

test('what the conductor refuses is refused with the same meaning, and nothing is stored', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const inner = { message: 'sess-1 at http://10.0.0.1' }
  for (const [error, status, code] of [
    [new AppError('conversation_ended', 409, inner), 409, 'conversation_ended'],
    [new AppError('unknown_profile: helper', 400, inner), 404, 'not_published'],
    [new AppError('attachments_too_large', 413), 413, 'attachments_too_large'],
    [new AppError('credits_exhausted', 402, { detail: { checkout_path: '/pay' } }), 402, 'credits_exhausted'],
    [new AppError('no_runner', 503, { ...inner, retryable: true }), 503, 'unavailable'],
    [new AppError('upstream', 502, { ...inner, retryable: true }), 502, 'upstream'],
  ] as const) {
    dispatch.script = () => {
      throw error
    }
    for (const path of ['', '/stream']) {
      const url = agent.url + path
      const reply = await app.inject({ method: 'POST', url, headers: agent.auth, payload: { message: 'Hi' } })
      assert.deepEqual([reply.statusCode, reply.json().error], [status, code], path)
      assert.equal(reply.json().checkout_path, error.detail['checkout_path'])
      assert.equal(reply.headers['x-public-run-id'] ?? reply.json().public_run_id, undefined)
      assert.doesNotMatch(reply.body, /sess-1|10\.0\.0\.1/)
    }
  }
  assert.deepEqual(await sql(database, 'acme', 'SELECT id FROM conversations UNION SELECT id FROM public_runs'), [])
})

test('after a start whose answer is lost the client has the ids, and learns what became of its run', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const post = (path: string, body: object = {}) =>
    app.inject({ method: 'POST', url: agent.url + path, headers: agent.auth, payload: { message: 'Hi', ...body } })
  const get = (path: string) => app.inject({ url: agent.url + path, headers: agent.auth })
  for (const path of ['', '/stream']) {
    dispatch.cut = 'after'
    const begun = await post(path)
    assert.deepEqual([begun.statusCode, begun.json().error], [502, 'upstream'])
    assert.equal(begun.headers['x-public-run-id'], begun.json().public_run_id)
    assert.doesNotMatch(begun.body, /10\.0\.0\.1/)
    await until(async () => (await get(`/runs/${begun.json().public_run_id}`)).statusCode === 200)

    dispatch.cut = 'before'
    const { conversation_id } = begun.json()
    const unknown = await post(path, { conversation_id })
    assert.deepEqual([unknown.statusCode, unknown.json().conversation_id], [502, conversation_id])
    const pending = await get(`/runs/${unknown.json().public_run_id}`)
    assert.deepEqual([pending.statusCode, pending.json().status], [202, 'dispatching'])
    const history = (await get(`/conversations/${conversation_id}`)).json().messages
    assert.deepEqual(
      history.map(({ role }: { role: string }) => role),
      ['user', 'assistant', 'user'],
    )
    const foreign = await post(path, { conversation_id: `conv_${'0'.repeat(33)}` })
    assert.deepEqual([foreign.statusCode, foreign.json().error], [404, 'conversation_not_found'])
    dispatch.cut = undefined
    assert.deepEqual((await post(path, { conversation_id })).json().error, 'conversation_busy')
  }
})

test('a synchronous call that ends before its start was answered names its run, too', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database, { syncSeconds: 1 })
  const slow = Promise.withResolvers<void>()
  dispatch.script = async (_task, run) => {
    await slow.promise
    run().emit(finish('late'))
  }
  const reply = await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload: { message: 'Hi' } })
  assert.deepEqual([reply.statusCode, reply.json().error], [504, 'sync_timeout'])
  const get = () => app.inject({ url: `${agent.url}/runs/${reply.json().public_run_id}`, headers: agent.auth })
  assert.deepEqual((await get()).json().status, 'dispatching')
  slow.resolve()
  await until(async () => (await get()).statusCode === 200)
  assert.equal((await get()).json().message, 'late')
})

test('unknown and foreign conversations answer the same 404 conversation_not_found', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const sibling = await publish(database, { slug: 'sibling' })
  const stranger = await publish(database, { tenant: 'globex' })
  const conversations = []
  for (const other of [sibling, stranger]) {
    const reply = await app.inject({ method: 'POST', url: other.url, headers: other.auth, payload: { message: 'Hi' } })
    conversations.push(reply.json().conversation_id)
  }
  const bodies = new Set()
  for (const conversation_id of [...conversations, 'conv_0123456789abcdefghjkmnpqr', 'nonsense', 'conv_\0', '']) {
    const reply = await app.inject({
      method: 'POST',
      url: agent.url,
      headers: agent.auth,
      payload: { message: 'Hi', conversation_id },
    })
    assert.equal(reply.statusCode, 404, conversation_id)
    const { request_id: _, ...body } = reply.json()
    bodies.add(JSON.stringify(body))
  }
  assert.equal(bodies.size, 1)
  assert.match(String([...bodies][0]), /^\{"error":"conversation_not_found"/)
})

test('a body that is not a chat is refused as invalid_request', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const bad = [
    {},
    { message: '' },
    { message: 7 },
    { message: 'nul \0' },
    { message: 'Hi', conversation_id: 5 },
    { message: 'Hi', metadata: [] },
    { message: 'Hi', metadata: { end_user_id: 5 } },
    { message: 'Hi', metadata: { end_user_id: '\0' } },
    { message: 'Hi', stream: true },
  ]
  for (const payload of bad) {
    const reply = await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
    assert.deepEqual([reply.statusCode, reply.json().error], [400, 'invalid_request'], JSON.stringify(payload))
  }
  const large = await app.inject({
    method: 'POST',
    url: agent.url,
    headers: agent.auth,
    payload: { message: 'x'.repeat(1_000_001) },
  })
  assert.deepEqual([large.statusCode, large.json().error], [413, 'body_too_large'])
  assert.equal(dispatch.started.length, 0)
})

test('calls under way when the server stops get their answer', async (t) => {
  const { app, kernel, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  dispatch.script = (_task, run) => void run()
  const reply = app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload: { message: 'Hi' } })
  await until(() => dispatch.runs.size === 1)
  const stopped = kernel.stop()
  dispatch.newest().emit(finish('just in time'))
  assert.equal((await reply).json().message, 'just in time')
  await stopped
})

test('calls that a stopping server cannot wait for answer 503 with the ids of the run that goes on', async (t) => {
  const { kernel, database, dispatch } = await gateway(t, { listen: true, config: { drain: '0ms' } })
  const agent = await publish(database)
  dispatch.script = (_task, run) => void run()
  const call = fetch(kernel.urls['gateway']! + agent.url, {
    method: 'POST',
    headers: { ...agent.auth, 'content-type': 'application/json' },
    body: '{"message":"Hi"}',
  })
  await until(() => dispatch.runs.size === 1)
  const stopped = kernel.stop()
  const reply = await call
  const body = (await reply.json()) as Record<string, string>
  assert.deepEqual([reply.status, body['error']], [503, 'unavailable'])
  assert.match(body['public_run_id']!, /^prun_/)
  assert.match(body['conversation_id']!, /^conv_/)
  await stopped
  assert.deepEqual(dispatch.cancelled, [])
})

test('a body of another content type answers 415, a larger one than a megabyte 413, and neither begins anything', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const post = (type: string, body: string) =>
    app.inject({ method: 'POST', url: agent.url, headers: { ...agent.auth, 'content-type': type }, payload: body })
  for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/xml', 'multipart/form-data']) {
    const reply = await post(type, JSON.stringify({ message: 'Hi' }))
    assert.deepEqual([reply.statusCode, reply.json().error], [415, 'unsupported_media_type'], type)
  }
  const large = await post('application/json', JSON.stringify({ message: 'x'.repeat(1_000_000) }))
  assert.deepEqual([large.statusCode, large.json().error], [413, 'body_too_large'])
  assert.equal(dispatch.started.length, 0)
})
