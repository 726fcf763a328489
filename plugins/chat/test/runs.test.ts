import assert from 'node:assert/strict'
import { test } from 'node:test'
import { framesOf, gateway, publish, sql, until } from './gateway.ts'
import { fail, finish, say } from './scripted-dispatch.ts'

const payload = { message: 'Hi' }

test('a run under way answers 202 with its status, and every end its own status code', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const get = (id: string) => app.inject({ url: `${agent.url}/runs/${id}`, headers: agent.auth })
  dispatch.cut = 'before'
  const doubtful = (await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })).json()
  const { public_run_id, conversation_id } = doubtful
  assert.deepEqual((await get(public_run_id)).json(), { public_run_id, conversation_id, status: 'dispatching' })
  // What the conductor does not know cannot be cancelled there, and is no failure.
  const url = `${agent.url}/runs/${public_run_id}`
  assert.equal((await app.inject({ method: 'DELETE', url, headers: agent.auth })).statusCode, 204)
  dispatch.cut = undefined

  dispatch.script = (_task, run) => run().emit(say('…'))
  const chat = app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  await until(() => dispatch.runs.size === 1)
  const open = `SELECT id, conversation_id FROM public_runs WHERE status = 'running'`
  const [row] = await sql<{ id: string; conversation_id: string }>(database, 'acme', open)
  const ids = { public_run_id: row!.id, conversation_id: row!.conversation_id }
  const pending = await get(row!.id)
  assert.deepEqual([pending.statusCode, pending.json()], [202, { ...ids, status: 'running' }])
  dispatch.newest().emit(finish('fine'))
  await chat
  const ok = await get(row!.id)
  assert.equal(ok.statusCode, 200)
  assert.deepEqual(ok.json(), { ...ids, message: 'fine', status: 'ok' })

  dispatch.script = (_task, run) => run().emit(fail('model_error'))
  const failed = (await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })).json()
  const error = await get(failed.public_run_id)
  assert.deepEqual([error.statusCode, error.json().error], [502, 'upstream'])
  assert.equal(error.json().public_run_id, failed.public_run_id)
  assert.equal(error.json().message, 'The agent could not answer.')

  await sql(database, 'acme', `UPDATE public_runs SET status = 'lost' WHERE id = $1`, failed.public_run_id)
  const lost = await get(failed.public_run_id)
  assert.deepEqual([lost.statusCode, lost.json().error, lost.json().public_run_id], [410, 'lost', failed.public_run_id])
  const stream = await app.inject({ url: `${agent.url}/runs/${failed.public_run_id}/stream`, headers: agent.auth })
  assert.deepEqual(
    framesOf(stream.body).map(({ event, data }) => [event, data['code'], data['public_run_id']]),
    [['error', 'upstream', failed.public_run_id]],
  )
})

test('unknown and foreign runs answer the same 404 on every route', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const sibling = await publish(database, { slug: 'sibling' })
  const stranger = await publish(database, { tenant: 'globex' })
  const chat = async (url: string, auth: { authorization: string }): Promise<string> =>
    (await app.inject({ method: 'POST', url, headers: auth, payload })).json().public_run_id
  const ended = [await chat(sibling.url, sibling.auth), await chat(stranger.url, stranger.auth)]
  // A client is following this run.
  dispatch.script = (_task, run) => run().emit(say('…'))
  const open = app.inject({ method: 'POST', url: sibling.url, headers: sibling.auth, payload })
  await until(() => dispatch.runs.size === 3)
  const [live] = await sql<{ id: string }>(database, 'acme', `SELECT id FROM public_runs WHERE finished_at IS NULL`)
  const bodies = new Set<string>()
  for (const id of [...ended, live!.id, 'prun_0123456789abcdefghjkmnpqr', 'nonsense', 'prun_%01']) {
    for (const [method, path] of [
      ['GET', ''],
      ['GET', '/stream'],
      ['DELETE', ''],
    ] as const) {
      const reply = await app.inject({ method, url: `${agent.url}/runs/${id}${path}`, headers: agent.auth })
      assert.equal(reply.statusCode, 404, `${method} ${id}${path}`)
      const { request_id: _, ...body } = reply.json()
      bodies.add(JSON.stringify(body))
    }
  }
  assert.equal(bodies.size, 1)
  assert.match([...bodies][0]!, /^\{"error":"not_found"/)
  assert.deepEqual(dispatch.cancelled, [])
  dispatch.newest().emit(finish('done'))
  await open
})

test('DELETE cancels the run, once or often, and a finished run keeps its status', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  dispatch.script = (_task, run) => run().emit(say('…'))
  const chat = app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  await until(() => dispatch.runs.size === 1)
  const [row] = await sql<{ id: string; run_id: string }>(database, 'acme', 'SELECT id, run_id FROM public_runs')
  const url = `${agent.url}/runs/${row!.id}`
  const cancel = () => app.inject({ method: 'DELETE', url, headers: agent.auth })
  const first = await cancel()
  assert.deepEqual([first.statusCode, first.body], [204, ''])
  assert.deepEqual(dispatch.cancelled, [row!.run_id])
  const answer = await chat
  assert.deepEqual([answer.statusCode, answer.json().message], [502, 'The run was cancelled.'])
  assert.equal((await cancel()).statusCode, 204)
  assert.deepEqual(dispatch.cancelled, [row!.run_id])
  dispatch.script = (_task, run) => run().emit(finish('fine'))
  const { public_run_id } = (await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })).json()
  const fine = `${agent.url}/runs/${public_run_id}`
  assert.equal((await app.inject({ method: 'DELETE', url: fine, headers: agent.auth })).statusCode, 204)
  assert.equal((await app.inject({ url: fine, headers: agent.auth })).statusCode, 200)
})

test('history is the newest limit messages in order, without what was said of failures unless asked', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  let conversation_id: string | undefined
  for (let i = 1; i <= 28; i++) {
    dispatch.script = (_task, run) => run().emit(i === 28 ? fail('model_error') : finish(`a${i}`))
    const reply = await app.inject({
      method: 'POST',
      url: agent.url,
      headers: agent.auth,
      payload: { message: `u${i}`, ...(conversation_id ? { conversation_id } : {}) },
    })
    conversation_id = reply.json().conversation_id
  }
  const read = async (query: string): Promise<string[]> => {
    const url = `${agent.url}/conversations/${conversation_id}${query}`
    const reply = await app.inject({ url, headers: agent.auth })
    assert.equal(reply.statusCode, 200)
    assert.equal(reply.json().conversation_id, conversation_id)
    return reply.json().messages.map((message: { content: string }) => message.content)
  }
  const byDefault = await read('')
  assert.equal(byDefault.length, 50)
  assert.deepEqual([byDefault[0], ...byDefault.slice(-2)], ['a3', 'a27', 'u28'])
  assert.deepEqual(await read('?limit=3'), ['u27', 'a27', 'u28'])
  assert.deepEqual(await read('?limit=2&include=errors'), ['u28', 'The agent could not answer.'])
  assert.equal((await read('?limit=200&include=errors')).length, 56)
  for (const query of ['?limit=0', '?limit=201', '?limit=x', '?limit=1.5', '?include=all']) {
    const url = `${agent.url}/conversations/${conversation_id}${query}`
    const reply = await app.inject({ url, headers: agent.auth })
    assert.deepEqual([reply.statusCode, reply.json().error], [400, 'invalid_request'], query)
  }
})

test('a conversation of another agent or tenant answers like one that does not exist', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const bodies = new Set<string>()
  const ids = ['conv_0123456789abcdefghjkmnpqr', 'nonsense', '%01']
  for (const options of [{ slug: 'sibling' }, { tenant: 'globex' }]) {
    const other = await publish(database, options)
    const reply = await app.inject({ method: 'POST', url: other.url, headers: other.auth, payload })
    ids.push(reply.json().conversation_id)
  }
  for (const id of ids) {
    const reply = await app.inject({ url: `${agent.url}/conversations/${id}`, headers: agent.auth })
    assert.equal(reply.statusCode, 404)
    const { request_id: _, ...body } = reply.json()
    bodies.add(JSON.stringify(body))
  }
  assert.equal(bodies.size, 1)
  assert.match([...bodies][0]!, /^\{"error":"conversation_not_found"/)
})

test('requests, ends and active watchers are counted', async (t) => {
  const { app, metrics, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  dispatch.script = (_task, run) => run().emit(fail('x'))
  await app.inject({ method: 'POST', url: `${agent.url}/stream`, headers: agent.auth, payload })
  await app.inject({ method: 'POST', url: agent.url, payload })
  const text = await metrics()
  assert.match(text, /chat_gateway_requests_total\{route="\/v1\/chat\/:tenant\/:agent",status="200"\} 1/)
  assert.match(text, /chat_gateway_requests_total\{route="\/v1\/chat\/:tenant\/:agent",status="401"\} 1/)
  assert.match(text, /chat_gateway_requests_total\{route="\/v1\/chat\/:tenant\/:agent\/stream",status="200"\} 1/)
  assert.match(text, /chat_gateway_request_duration_seconds_count\{route="\/v1\/chat\/:tenant\/:agent"\} 2/)
  assert.match(text, /chat_gateway_run_terminal_total\{status="done"\} 1/)
  assert.match(text, /chat_gateway_run_terminal_total\{status="error"\} 1/)
  assert.match(text, /chat_gateway_watcher_active 0/)
})
