import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import {
  answer,
  codeOf,
  collect,
  consecutive,
  execute,
  hang,
  type Line,
  profile,
  run,
  runnerOf,
  types,
  until,
} from './fixtures.ts'

test("a run begins with the runner's own progress line and passes the sidecar's on", async (t) => {
  const f = await runnerOf(t, answer)
  const lines = await execute(f, { firstSeq: 5 })
  assert.deepEqual(types(lines), ['progress', 'assistant', 'result'])
  assert.equal(lines[0]!['stage'], 'runner_accepted')
  consecutive(lines, 5)
  assert.equal(f.envelopes[0]!.firstSeq, 6)
  assert.equal(f.envelopes[0]!.tenantId, 'acme')
  assert.equal((await f.runner.getSession('acme', run().sessionId))!.status, 'idle')
})

test('a stream that ends without a terminal line gets an error with the next seq', async (t) => {
  const f = await runnerOf(t, async function* (_envelope, events) {
    yield (
      events.line({ type: 'assistant', text: 'a', delta: true }) +
      events.line({ type: 'assistant', text: 'b', delta: true })
    )
  })
  const lines = await execute(f)
  assert.deepEqual(types(lines), ['progress', 'assistant', 'assistant', 'error'])
  assert.equal(codeOf(lines), 'sidecar_lost')
  assert.equal(lines.at(-1)!['retryable'], true)
  consecutive(lines)
  assert.equal((await f.runner.getSession('acme', run().sessionId))!.status, 'errored')
})

test('an errored session may run again', async (t) => {
  let calls = 0
  const f = await runnerOf(t, async function* (envelope, events, signal) {
    if (calls++ > 0) yield* answer(envelope, events, signal)
  })
  assert.equal(codeOf(await execute(f)), 'sidecar_lost')
  assert.equal((await execute(f, { runId: 'r2' })).at(-1)!['type'], 'result')
})

test('a run whose sidecar cannot be reached is refused: another runner may be asked, whether the session is new or not', async (t) => {
  let away = false
  const f = await runnerOf(t, async function* (envelope, events, signal) {
    if (away) throw new AppError('sidecar_unreachable', 503, { message: 'Away.', retryable: true })
    yield* answer(envelope, events, signal)
  })
  const create = { profile: profile('p', [], 'general') }
  await execute(f, { create })
  away = true
  const refused = (e: AppError): boolean => e.code === 'sidecar_unreachable' && e.status === 503 && e.retryable
  await assert.rejects(execute(f, { create, runId: 'r2' }), refused)
  await assert.rejects(execute(f, { create, runId: 'r3', sessionId: 'sess-00000000-00000002' }), refused)
})

test('a sidecar that alone has a conversation is waited for while it is restarted; when it comes back without it, nothing of the run was seen', async (t) => {
  let asked = 0
  let restarting = false
  const f = await runnerOf(t, async function* (envelope, events, signal) {
    if (restarting && asked++ < 60) throw new AppError('sidecar_unreachable', 503, { retryable: true })
    if (restarting && envelope.resume) throw new AppError('session_state_missing', 409)
    yield* answer(envelope, events, signal)
  })
  await execute(f)
  restarting = true
  // Longer than a sidecar may take to answer that it has lost a conversation.
  await assert.rejects(execute(f, { runId: 'r2' }), (e: AppError) => e.code === 'unknown_session')
  assert.equal(asked, 61)
})

for (const [what, only] of Object.entries({
  'a sidecar that alone has a conversation': profile(),
  'a sidecar of a session with files in a sandbox': { ...profile('p', [], 'general'), sandbox: {} },
})) {
  test(`${what} and does not come back is an error event with its code`, async (t) => {
    let away = false
    const f = await runnerOf(t, async function* (envelope, events, signal) {
      if (away) throw new AppError('sidecar_unreachable', 503, { message: 'Away.', retryable: true })
      yield* answer(envelope, events, signal)
    })
    const create = { profile: only }
    await execute(f, { create })
    away = true
    const lines = await execute(f, { create, runId: 'r2' })
    const last = lines.at(-1)!
    assert.deepEqual([last['code'], last['message'], last['retryable']], ['sidecar_unreachable', 'Away.', true])
    consecutive(lines)
  })
}

test('what a stopping sidecar refuses was not begun: another runner may be asked, whether the session is new or not', async (t) => {
  let stopping = false
  const f = await runnerOf(t, async function* (envelope, events, signal) {
    if (stopping) throw new AppError('sidecar_draining', 503, { retryable: true })
    yield* answer(envelope, events, signal)
  })
  await execute(f)
  stopping = true
  const refused = (e: AppError): boolean => e.code === 'sidecar_draining' && e.status === 503 && e.retryable
  await assert.rejects(execute(f, { runId: 'r2' }), refused)
  await assert.rejects(execute(f, { runId: 'r3', sessionId: 'sess-00000000-00000002' }), refused)
  assert.equal(await f.runner.getSession('acme', run().sessionId), undefined, 'an old copy is not gone on with')
})

test('a sidecar that is still leaving the former run is asked again', async (t) => {
  let asked = 0
  const f = await runnerOf(t, async function* (envelope, events, signal) {
    if (asked++ < 2) throw new AppError('session_busy', 409)
    yield* answer(envelope, events, signal)
  })
  const lines = await execute(f)
  assert.equal(lines.at(-1)!['type'], 'result')
  consecutive(lines)
  assert.equal(asked, 3)
})

test('only a run that fails leaves its session errored: one that was cancelled or interrupted does not', async (t) => {
  const ends: [string, string][] = [
    ['cancelled', 'idle'],
    ['interrupted', 'idle'],
    ['model_error', 'errored'],
    ['timeout', 'errored'],
  ]
  for (const [code, status] of ends) {
    const f = await runnerOf(t, async function* (_envelope, events) {
      yield events.line({ type: 'error', code, message: 'It ended.' })
    })
    assert.equal(codeOf(await execute(f)), code)
    assert.equal((await f.runner.getSession('acme', run().sessionId))!.status, status, code)
  }
  for (const [reason, code, status] of [
    [undefined, 'cancelled', 'idle'],
    ['whatever', 'cancelled', 'idle'],
    ['timeout', 'timeout', 'errored'],
    ['budget_exceeded', 'budget_exceeded', 'errored'],
  ] as const) {
    const f = await runnerOf(t, hang)
    const lines = execute(f)
    await until(() => f.signals.length > 0)
    f.runner.runs.cancel('acme', 'r1', reason)
    assert.equal(codeOf(await lines), code)
    assert.equal(f.sessions.get(run().sessionId)!.status, status)
  }
})

test('an unknown exception never reaches the wire', async (t) => {
  const f = await runnerOf(t, async function* () {
    yield* []
    throw new Error('secret inside')
  })
  assert.ok(!JSON.stringify(await execute(f)).includes('secret'))
})

test('one run per session: the second is session_busy, and the session is free when the result is seen', async (t) => {
  const f = await runnerOf(t, answer)
  const chunks = f.runner.execute('acme', run(), new AbortController().signal)[Symbol.asyncIterator]()
  await chunks.next()
  await assert.rejects(execute(f, { runId: 'r2' }), { code: 'session_busy', status: 409 })
  for (let line = ''; !line.includes('"type":"result"');) {
    const { done, value } = await chunks.next()
    assert.notEqual(done, true, 'no result came')
    line = String(value)
  }
  // Not read to its end yet: a conductor may start the next run as soon as it saw the terminal line.
  assert.equal((await execute(f, { runId: 'r2' })).at(-1)!['type'], 'result')
  assert.equal((await chunks.next()).done, true)
})

test("an unknown session and another tenant's answer the same", async (t) => {
  const f = await runnerOf(t, answer)
  await execute(f)
  const { create: _, ...reuse } = run()
  const failures: unknown[] = []
  for (const [tenant, task] of [
    ['globex', reuse],
    ['globex', run()],
    ['acme', { ...reuse, sessionId: 'sess-00000000-0000ffff' }],
  ] as const) {
    await collect(f.runner.execute(tenant, task, new AbortController().signal)).catch((error: AppError) =>
      failures.push({ code: error.code, status: error.status, message: error.message, detail: error.detail }),
    )
  }
  const same = { code: 'unknown_session', status: 404, message: 'unknown_session', detail: {} }
  assert.deepEqual(failures, [same, same, same])
})

test("aborting the signal aborts the sidecar's turn and ends the run", async (t) => {
  const f = await runnerOf(t, hang)
  const abort = new AbortController()
  const lines = execute(f, {}, abort.signal)
  await until(() => f.signals.length > 0)
  abort.abort()
  assert.equal(codeOf(await lines), 'cancelled')
  assert.equal(f.signals[0]!.aborted, true)
})

test('a reader that leaves early aborts the turn and frees the session', async (t) => {
  const f = await runnerOf(t, hang)
  for await (const _ of f.runner.execute('acme', run(), new AbortController().signal)) break
  assert.equal(f.signals[0]!.aborted, true)
  assert.equal((await f.runner.getSession('acme', run().sessionId))!.status, 'idle')
})

test('cancelRun ends the run of that tenant only, with an error event', async (t) => {
  const f = await runnerOf(t, hang)
  const lines = execute(f)
  await until(() => f.signals.length > 0)
  f.runner.runs.cancel('globex', 'r1')
  assert.equal(f.signals[0]!.aborted, false)
  f.runner.runs.cancel('acme', 'r1')
  f.runner.runs.cancel('acme', 'r1')
  assert.equal(codeOf(await lines), 'cancelled')
})

test('a sidecar that ignores its deadline and its signal is cut off as timeout', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const f = await runnerOf(t, async function* (_envelope, events) {
    yield events.line({ type: 'assistant', text: 'a', delta: true })
    await new Promise(() => {})
  })
  const lines: Line[] = []
  const reading = (async () => {
    for await (const chunk of f.runner.execute('acme', run({ timeoutMs: 1000 }), new AbortController().signal)) {
      lines.push(JSON.parse(chunk.toString()) as Line)
    }
  })()
  await until(() => lines.length === 2)
  t.mock.timers.tick(1_000)
  assert.equal(f.signals[0]!.aborted, false, "the sidecar's own deadline comes first")
  t.mock.timers.tick(3_000)
  await until(() => lines.length === 3)
  assert.equal(codeOf(lines), 'timeout')
  // The sidecar never ends its stream: the runner waits a second and then closes it.
  await until(() => {
    t.mock.timers.tick(1_000)
    return f.signals[0]!.aborted
  })
  t.mock.timers.tick(1_000)
  await reading
  consecutive(lines)
})

test('a stopping runner ends its runs with runner_stopping', async (t) => {
  const f = await runnerOf(t, hang)
  const lines = execute(f)
  await until(() => f.signals.length > 0)
  await f.stop()
  assert.equal(codeOf(await lines), 'runner_stopping')
})

test('the MCP address travels with every run, with an empty toolkit as well', async (t) => {
  const f = await runnerOf(t, answer)
  await execute(f)
  await execute(f, {
    sessionId: 'sess-00000000-00000002',
    create: { profile: profile('q', ['calculate', 'unknown_tool']) },
  })
  assert.equal(f.envelopes[0]!.sessionMcpUrl, `http://runner.test:7060/runner/sessions/${run().sessionId}/mcp`)
  assert.equal(f.envelopes[1]!.sessionMcpUrl, 'http://runner.test:7060/runner/sessions/sess-00000000-00000002/mcp')
})

test('a sidecar that lost a conversation makes the runner let go of the session, so that it is hydrated', async (t) => {
  let lost = false
  const fixture = await runnerOf(t, async function* (envelope, events, signal) {
    if (lost && envelope.resume) throw new AppError('session_state_missing', 409)
    yield* answer(envelope, events, signal)
  })
  const { runner } = fixture
  const signal = new AbortController().signal
  const first = run()
  const { create: _, ...next } = run({ runId: 'r2' })
  for await (const chunk of runner.execute('acme', first, signal)) void chunk
  assert.equal(fixture.envelopes[0]!.resume, undefined)
  lost = true
  await assert.rejects(
    (async () => {
      for await (const chunk of runner.execute('acme', next, signal)) void chunk
    })(),
    { code: 'unknown_session' },
  )
  assert.equal(fixture.envelopes[1]!.resume, true)
  // Without a bundle the sidecar need not have a conversation, so the run goes ahead.
  await runner.hydrate('acme', next.sessionId, profile())
  const lines: string[] = []
  for await (const chunk of runner.execute('acme', next, signal)) lines.push(chunk.toString())
  assert.match(lines.join(''), /"type":"result"/)
})

test("a run brings a token for the tools of its session, which ends with it and is no other run's", async (t) => {
  const f = await runnerOf(t, async function* (envelope, events, signal) {
    if (envelope.runId === 'r1') yield* hang(envelope, events, signal)
    else yield* answer(envelope, events, signal)
  })
  const order = run({ create: { profile: profile('p', ['calculate']) } })
  const reading = execute(f, order)
  await until(() => f.envelopes.length === 1)
  const session = f.sessions.get(order.sessionId)!
  const token = f.envelopes[0]!.sessionMcpToken!
  const admits = (shown: string | undefined) => f.sessions.admits(session, shown)
  assert.equal(admits(`Bearer ${token}`), true)
  for (const other of [undefined, '', token, 'Bearer ', `Bearer ${token}x`, `Bearer ${token.slice(1)}`, 'Bearer é']) {
    assert.equal(admits(other), false, other)
  }
  f.runner.runs.cancel('acme', 'r1')
  await reading
  assert.equal(admits(`Bearer ${token}`), false)
  await execute(f, run({ runId: 'r2', keepMs: 60_000 }))
  const next = f.envelopes[1]!.sessionMcpToken!
  assert.notEqual(next, token)
  assert.equal(admits(`Bearer ${next}`), false, 'its output is kept, but it is over')
  // Without tools there is nothing to show it for.
  await execute(f, run({ runId: 'r3', sessionId: 'sess-00000000-00000003' }))
  assert.equal(f.envelopes[2]!.sessionMcpToken, undefined)
})

test('a run goes to no MCP server on a host that the runner was not told of', async (t) => {
  const f = await runnerOf(t, answer, { mcpHosts: 'api.example.com' })
  const status = async (runId: string, url: string) => {
    const body = run({ runId, mcpServers: [{ name: 'files', url }] })
    const reply = await f.call('POST', '/runner/runs', { body })
    return [reply.statusCode, reply.statusCode === 200 || reply.json<{ message: string }>().message]
  }
  assert.deepEqual(await status('r1', 'https://api.example.com/mcp'), [200, true])
  assert.deepEqual(await status('r2', 'http://169.254.169.254/'), [
    403,
    "This runner does not allow the host of the MCP server 'files'; add it to AGENT_ORC_MCP_HOSTS.",
  ])
  assert.equal(f.envelopes.length, 1)
})
