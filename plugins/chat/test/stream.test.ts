import assert from 'node:assert/strict'
import { connect, type Socket } from 'node:net'
import { test } from 'node:test'
import { AppError } from '#kernel'
import type { LogChunk, RuntimeEvent } from '#contracts/run-event'
import { framesOf, gateway, publish, type Seeded, sql, until } from './gateway.ts'
import { fail, finish, say } from './scripted-dispatch.ts'

const payload = { message: 'Hi' }
const events: RuntimeEvent[] = [
  { type: 'progress', stage: 'model' },
  say('Let me look. '),
  { type: 'tool_call', id: 'c1', name: 'search', arguments: { q: 'x' } },
  { type: 'tool_result', id: 'c1', name: 'search', ok: true, content: 'found' },
  say('Found '),
  { type: 'usage', inputTokens: 1, outputTokens: 2, model: 'm' },
  say('it.'),
  finish('Let me look. Found it.'),
]

/** A client on a bare socket, so that it can stall and vanish like real ones do. */
function open(
  base: string,
  agent: Seeded,
  path: string,
  headers: Record<string, string> = {},
): { socket: Socket; text(): string } {
  const { hostname, port } = new URL(base)
  const socket = connect(Number(port), hostname)
  let text = ''
  socket.setEncoding('utf8').on('data', (data) => (text += data))
  socket.on('error', () => {})
  const isChat = !path.startsWith('/runs/')
  const body = isChat ? JSON.stringify(payload) : ''
  const lines = Object.entries({
    host: `${hostname}:${port}`,
    ...agent.auth,
    ...(isChat ? { 'content-type': 'application/json', 'content-length': String(body.length) } : {}),
    ...headers,
  })
  const head = lines.map(([name, value]) => `${name}: ${value}\r\n`).join('')
  socket.write(`${isChat ? 'POST' : 'GET'} ${agent.url}${path} HTTP/1.1\r\n${head}\r\n${body}`)
  return { socket, text: () => text }
}

const runIdOf = (text: string): string => /^x-public-run-id: (prun_\w+)/im.exec(text)![1]!

test('a stream is deltas and one done, each with its sequence number', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  dispatch.script = (_task, run) => run().emit(...events)
  const reply = await app.inject({ method: 'POST', url: `${agent.url}/stream`, headers: agent.auth, payload })
  assert.equal(reply.statusCode, 200)
  assert.equal(reply.headers['content-type'], 'text/event-stream')
  assert.equal(reply.headers['cache-control'], 'no-store')
  assert.equal(reply.headers['x-accel-buffering'], 'no')
  const public_run_id = reply.headers['x-public-run-id']
  const conversation_id = reply.headers['x-conversation-id']
  assert.deepEqual(framesOf(reply.body), [
    { id: '2', event: 'delta', data: { text: 'Let me look. ' } },
    { id: '5', event: 'delta', data: { text: 'Found ' } },
    { id: '7', event: 'delta', data: { text: 'it.' } },
    { id: '8', event: 'done', data: { public_run_id, conversation_id, message: 'Let me look. Found it.' } },
  ])
  assert.doesNotMatch(reply.body, /sess-/)
})

test('tool events appear in the stream when the agent exposes them', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database, { exposeToolEvents: true })
  dispatch.script = (_task, run) => run().emit(...events)
  const reply = await app.inject({ method: 'POST', url: `${agent.url}/stream`, headers: agent.auth, payload })
  assert.deepEqual(
    framesOf(reply.body).filter((frame) => frame.event === 'tool'),
    [
      { id: '3', event: 'tool', data: { id: 'c1', name: 'search', status: 'running' } },
      { id: '4', event: 'tool', data: { id: 'c1', status: 'ok' } },
    ],
  )
})

test('a run that fails ends its stream with exactly one error of code upstream', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  for (const before of [[], [say('so far')]]) {
    dispatch.script = (_task, run) => run().emit(...before, fail('model_error'))
    const reply = await app.inject({ method: 'POST', url: `${agent.url}/stream`, headers: agent.auth, payload })
    const frames = framesOf(reply.body)
    assert.equal(frames.filter((frame) => frame.event === 'error').length, 1)
    assert.deepEqual(frames.at(-1), {
      id: String(before.length + 1),
      event: 'error',
      data: {
        code: 'upstream',
        message: 'The agent could not answer.',
        public_run_id: reply.headers['x-public-run-id'],
      },
    })
    assert.doesNotMatch(reply.body, /provider\.internal/)
  }
})

test('done is announced only when the answer can be read from the conversation', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  for (let i = 0; i < 5; i++) {
    dispatch.script = (_task, run) => run().emit(finish(`answer ${i}`))
    const reply = await app.inject({ method: 'POST', url: `${agent.url}/stream`, headers: agent.auth, payload })
    const url = `${agent.url}/conversations/${String(reply.headers['x-conversation-id'])}`
    const history = await app.inject({ url, headers: agent.auth })
    assert.equal(history.json().messages.at(-1).content, `answer ${i}`)
  }
})

test('a client that leaves does not end its run, and finds the answer later', async (t) => {
  const { app, kernel, database, dispatch } = await gateway(t, { listen: true })
  const agent = await publish(database)
  dispatch.script = (_task, run) => run().emit(say('one '))
  const client = open(kernel.urls['gateway']!, agent, '/stream')
  await until(() => client.text().includes('one '))
  client.socket.destroy()
  dispatch.newest().emit(say('two'), finish('one two'))
  const url = `${agent.url}/runs/${runIdOf(client.text())}`
  await until(async () => (await app.inject({ url, headers: agent.auth })).statusCode === 200)
  assert.equal((await app.inject({ url, headers: agent.auth })).json().message, 'one two')
  assert.deepEqual(dispatch.cancelled, [])
})

test('a client that leaves is followed no longer, whether its run has begun or not', async (t) => {
  const { app, kernel, database, dispatch, metrics } = await gateway(t, { listen: true })
  const agent = await publish(database)
  const nobody = async (): Promise<boolean> => /^chat_gateway_watcher_active 0$/m.test(await metrics())
  for (const path of ['', '/stream']) {
    const begin = Promise.withResolvers<void>()
    dispatch.script = async (_task, run) => {
      await begin.promise
      run().emit(say('one '))
    }
    const before = dispatch.runs.size
    const asked = dispatch.started.length
    const early = open(kernel.urls['gateway']!, agent, path)
    await until(() => dispatch.started.length === asked + 1)
    early.socket.destroy()
    begin.resolve()
    await until(() => dispatch.runs.size === before + 1)
    await until(async () => dispatch.newest().followers === 0 && (await nobody()))

    const headers = { 'idempotency-key': `k${path}` }
    const late = open(kernel.urls['gateway']!, agent, path, headers)
    await until(() => dispatch.runs.size === before + 2 && dispatch.newest().followers === 1)
    late.socket.destroy()
    await until(async () => dispatch.newest().followers === 0 && (await nobody()))
    // Its idempotency key is free, and a repeat joins the run.
    await until(async () => {
      const free = `SELECT FROM idempotency_keys WHERE key = $1 AND locked_until IS NULL`
      return (await sql(database, 'acme', free, headers['idempotency-key'])).length > 0
    })
    const again = app.inject({ method: 'POST', url: agent.url, headers: { ...agent.auth, ...headers }, payload })
    again.catch(() => {})
    await until(() => dispatch.newest().followers === 1)
    dispatch.newest().emit(finish('one two'))
    assert.equal((await again).json().message, 'one two')
  }
  assert.deepEqual(dispatch.cancelled, [])
})

test('a stream resumed after any event is exactly the rest of the whole stream', async (t) => {
  const { kernel, database, dispatch } = await gateway(t, { listen: true })
  const agent = await publish(database)
  dispatch.script = (_task, run) => {
    for (const event of events.slice(0, 5)) run().emit(event)
  }
  const base = kernel.urls['gateway']!
  const whole = open(base, agent, '/stream')
  await until(() => whole.text().includes('Found '))
  const id = runIdOf(whole.text())
  const resumed = ['0', '1', '2', '3', '4', '5', '6', '7', 'garbage', '99'].map((last) =>
    open(base, agent, `/runs/${id}/stream`, { 'last-event-id': last }),
  )
  await until(() => resumed.every((client) => client.text().includes('\r\n\r\n')))
  dispatch.newest().emit(...events.slice(5, 7))
  dispatch.newest().emit(events[7]!)
  await until(() => [whole, ...resumed].every((client) => client.text().includes('event: done')))
  // Chunked transfer adds sizes between the frames; what matters are the frames.
  const frames = (text: string) =>
    framesOf(text.slice(text.indexOf('\r\n\r\n') + 4).replaceAll(/[\da-f]+\r\n|\r\n/g, ''))
  const all = frames(whole.text())
  assert.deepEqual(
    all.map((frame) => frame.id),
    ['2', '5', '7', '8'],
  )
  for (const [last, client] of resumed.entries()) {
    const after = last === 8 ? 0 : last === 9 ? 99 : last
    assert.deepEqual(
      frames(client.text()),
      // A reader that is past the end, as after a killed conductor, gets the terminal event all the same.
      all.filter((frame) => Number(frame.id) > after || frame.event === 'done'),
      `Last-Event-ID ${last}`,
    )
  }
  for (const { socket } of [whole, ...resumed]) socket.destroy()
})

test('a finished run answers its stream with one reconstructed event, equal to the original', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  for (const end of [finish('the answer'), fail('model_error')]) {
    dispatch.script = (_task, run) => run().emit(say('the '), end)
    const live = await app.inject({ method: 'POST', url: `${agent.url}/stream`, headers: agent.auth, payload })
    const url = `${agent.url}/runs/${String(live.headers['x-public-run-id'])}/stream`
    for (const last of ['0', '1', '2', 'x']) {
      const again = await app.inject({ url, headers: { ...agent.auth, 'last-event-id': last } })
      assert.equal(again.statusCode, 200)
      assert.deepEqual(framesOf(again.body), framesOf(live.body).slice(-1))
    }
  }
})

test('a run can be followed from any gateway', async (t) => {
  const a = await gateway(t)
  const b = await gateway(t, { dsn: a.dsn, dispatch: a.dispatch })
  const agent = await publish(a.database)
  a.dispatch.script = (_task, run) => run().emit(say('one '))
  const live = a.app.inject({ method: 'POST', url: `${agent.url}/stream`, headers: agent.auth, payload })
  await until(() => a.dispatch.runs.size === 1)
  const [row] = await sql<{ id: string }>(a.database, 'acme', 'SELECT id FROM public_runs')
  const url = `${agent.url}/runs/${row!.id}/stream`
  const elsewhere = [0, 1].map((last) =>
    b.app.inject({ url, headers: { ...agent.auth, 'last-event-id': String(last) } }),
  )
  await until(() => a.dispatch.newest().followers === 3)
  a.dispatch.newest().emit(say('two'))
  a.dispatch.newest().emit(finish('one two'))
  const frames = framesOf((await live).body)
  assert.deepEqual(
    frames.map((frame) => frame.event),
    ['delta', 'delta', 'done'],
  )
  const [whole, rest] = await Promise.all(elsewhere)
  assert.deepEqual(framesOf(whole!.body), frames)
  assert.deepEqual(framesOf(rest!.body), frames.slice(1))
})

test('a run that has not reached the conductor yet can be followed, and is seen when it begins', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const headers = { ...agent.auth, 'idempotency-key': 'k' }
  const post = () => app.inject({ method: 'POST', url: `${agent.url}/stream`, headers, payload })
  dispatch.cut = 'before'
  const { public_run_id } = (await post()).json()
  let asked = 0
  const { follow } = dispatch
  dispatch.follow = (...args) => {
    asked++
    return follow(...args)
  }
  const url = `${agent.url}/runs/${public_run_id}/stream`
  const early = app.inject({ url, headers: agent.auth })
  early.catch(() => {})
  await until(() => asked === 2)
  dispatch.cut = undefined
  // It goes on when both follow it: whoever came after its end would see nothing but that.
  dispatch.script = (_task, run) => run().emit(say('Hel'))
  const begun = post()
  await until(() => dispatch.runs.size === 1 && dispatch.newest().followers === 2)
  dispatch.newest().emit(say('lo'))
  dispatch.newest().emit(finish('Hello'))
  const live = framesOf((await begun).body)
  assert.deepEqual(framesOf((await early).body), live)
  assert.deepEqual(
    live.map((frame) => frame.event),
    ['delta', 'delta', 'done'],
  )
})

test('a log that cannot be read on ends its stream without an end of the run, and its call with the ids', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const { start } = dispatch
  dispatch.start = async (...args) => {
    const cut = async function* (): AsyncGenerator<LogChunk> {
      yield* []
      throw new AppError('upstream', 502, { message: 'no conductor at 10.0.0.1' })
    }
    return { ...(await start(...args)), events: cut() }
  }
  dispatch.script = (_task, run) => run().emit(say('one'))
  const stream = await app.inject({ method: 'POST', url: `${agent.url}/stream`, headers: agent.auth, payload })
  assert.deepEqual([stream.statusCode, stream.body], [200, ': closing\n\n'])
  const call = await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  assert.deepEqual([call.statusCode, call.json().error], [502, 'upstream'])
  assert.match(call.json().public_run_id, /^prun_/)
  assert.doesNotMatch(call.body, /10\.0\.0\.1/)
})

test('a paused reader holds back nobody, and gets everything when it reads on', async (t) => {
  const { kernel, app, database, dispatch } = await gateway(t, { listen: true })
  const agent = await publish(database)
  dispatch.script = (_task, run) => run().emit(say('begin '))
  const client = open(kernel.urls['gateway']!, agent, '/stream')
  await until(() => client.text().includes('begin '))
  client.socket.pause()
  const text = 'x'.repeat(1_000)
  const rounds = 100
  for (let i = 0; i < rounds; i++) {
    dispatch.newest().emit(...Array.from({ length: 100 }, () => say(text)))
    await new Promise((resolve) => setImmediate(resolve))
  }
  dispatch.newest().emit(finish('all of it'))
  const id = runIdOf(client.text())
  const get = () => app.inject({ url: `${agent.url}/runs/${id}`, headers: agent.auth })
  await until(async () => (await get()).statusCode === 200)
  client.socket.resume()
  await until(() => client.text().includes('event: done'))
  const deltas = client.text().match(/^event: delta$/gm)
  assert.equal(deltas?.length, 1 + rounds * 100)
  client.socket.destroy()
})

test('a silent stream is kept open by comments', async (t) => {
  const { kernel, database, dispatch } = await gateway(t, { listen: true, config: { heartbeat: '1s' } })
  const agent = await publish(database)
  dispatch.script = (_task, run) => void run()
  const client = open(kernel.urls['gateway']!, agent, '/stream')
  await until(() => client.text().includes(': ping\n\n'))
  client.socket.destroy()
})

test('a gateway that stops ends its streams without an end of the run, and the next one goes on', async (t) => {
  const a = await gateway(t, { listen: true })
  const agent = await publish(a.database)
  a.dispatch.script = (_task, run) => run().emit(say('one '))
  const client = open(a.kernel.urls['gateway']!, agent, '/stream')
  await until(() => client.text().includes('one '))
  const b = await gateway(t, { dsn: a.dsn, dispatch: a.dispatch, listen: true })
  await a.kernel.stop()
  await until(() => client.socket.readableEnded || client.socket.destroyed)
  assert.ok(client.text().includes(': closing\n\n'))
  assert.ok(!/event: (done|error)/.test(client.text()))
  const path = `/runs/${runIdOf(client.text())}/stream`
  const resumed = open(b.kernel.urls['gateway']!, agent, path, { 'last-event-id': '1' })
  await until(() => resumed.text().includes('\r\n\r\n'))
  a.dispatch.newest().emit(say('two'))
  a.dispatch.newest().emit(finish('one two'))
  await until(() => resumed.text().includes('event: done'))
  assert.deepEqual(resumed.text().match(/^event: \w+$/gm), ['event: delta', 'event: done'])
  assert.ok(resumed.text().includes('{"text":"two"}'))
  resumed.socket.destroy()
})
