import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseLine } from '#contracts/run-event'
import { endless, eventually, meddling, runId, stage, type Stage, profileNamed } from './stage.ts'

const post = (s: Stage, payload: object, headers: Record<string, string> = {}, listener = 'conductor') =>
  s.kernel.listeners[listener]!.inject({ method: 'POST', url: '/api/runs', payload, headers })
const get = (s: Stage, url: string, headers: Record<string, string> = {}) =>
  s.kernel.listeners['conductor']!.inject({ method: 'GET', url, headers })

async function finished(s: Stage, payload: object = { profile: 'writer', prompt: 'hi' }) {
  const reply = await post(s, payload)
  assert.equal(reply.statusCode, 202, reply.body)
  const accepted: { runId: string; sessionId: string; status: string } = reply.json()
  await eventually('the run ends', async () => (await s.store.findRun('acme', accepted.runId))?.status !== 'running')
  return accepted
}

test('POST /api/runs answers 202 at once and the run is executed, recorded and summarised', async (t) => {
  const s = await stage(t)
  const { runId: id, sessionId, status } = await finished(s, { profile: 'writer', prompt: 'hi', metadata: { a: 1 } })
  assert.equal(status, 'running')
  assert.match(sessionId, /^sess-aaaaaaaa-[0-9a-f]{8}$/)
  const { events, ...run } = (await get(s, `/api/runs/${id}`)).json()
  assert.deepEqual((await get(s, `/api/runs/${id}?events=false`)).json(), run)
  assert.equal(run.status, 'ok')
  assert.equal(run.result, 'Hello, world.')
  assert.deepEqual(run.subTask, { id, sessionId, profile: 'writer', prompt: 'hi', metadata: { a: 1 } })
  assert.deepEqual(run.usage, { inputTokens: 3, outputTokens: 2, model: 'demo', costCents: 0.5 })
  assert.equal(run.costCents, 0.5)
  assert.deepEqual(
    events.map((e: { type: string; seq: number }) => `${e.seq} ${e.type}`),
    ['1 progress', '2 session_init', '3 assistant', '4 assistant', '5 usage', '6 result'],
  )
  assert.equal(s.runner.executed[0]?.create?.profile.name, 'writer')
  assert.equal((await s.store.findSession('acme', sessionId))?.runtimeSessionId, `vendor-${sessionId}`)
})

test('a second run in the session goes to its runner with the conversation handle and without a profile', async (t) => {
  const s = await stage(t)
  const first = await finished(s)
  const second = await finished(s, { profile: 'writer', prompt: 'more', sessionId: first.sessionId })
  assert.equal(second.sessionId, first.sessionId)
  const order = s.runner.executed[1]!
  assert.equal(order.create, undefined)
  assert.equal(order.runtimeSessionId, `vendor-${first.sessionId}`)
})

test('POST /api/runs answers each mistake as the specification says', async (t) => {
  const s = await stage(t)
  const { sessionId, runId: taken } = await finished(s)
  const cases: [object, number, string][] = [
    [{ profile: 'nobody', prompt: 'x' }, 400, 'unknown_profile: nobody'],
    [{ profile: 'a\0b', prompt: 'x' }, 400, 'unknown_profile: a\0b'],
    [{ profile: 'nobody', prompt: 'x', sessionId }, 400, 'unknown_profile: nobody'],
    [{ profile: 'writer', prompt: 'x', id: 'no spaces' }, 400, 'invalid run id'],
    [{ profile: 'writer', prompt: 'x', id: 'x'.repeat(129) }, 400, 'invalid run id'],
    [{ profile: 'writer', prompt: 'x', sessionId: 'a/b' }, 400, 'invalid session id'],
    [{ profile: 'writer', prompt: 'x', sessionId: '' }, 400, 'invalid session id'],
    [{ profile: 'writer', prompt: 'x', sessionId: 'sess-aaaaaaaa-00000000' }, 404, 'not_found'],
    [{ profile: 'writer', prompt: 'x', sessionId: 'sess-ffffffff-00000000' }, 404, 'not_found'],
    [{ profile: 'other', prompt: 'x', sessionId }, 409, 'session_profile_mismatch'],
    [{ profile: 'writer', prompt: 'another', id: taken }, 409, 'conflict'],
    [{ profile: 'writer' }, 400, 'invalid_request'],
    [{ profile: 'writer', prompt: '' }, 400, 'invalid_request'],
    [{ profile: 'writer', prompt: 'x', extra: 1 }, 400, 'invalid_request'],
  ]
  for (const [payload, status, error] of cases) {
    const reply = await post(s, payload)
    assert.equal(reply.statusCode, status, JSON.stringify(payload))
    assert.equal(reply.json().error, error)
  }
  s.runner.script = endless
  const busy = (await post(s, { profile: 'writer', prompt: 'x', sessionId })).json()
  assert.equal((await post(s, { profile: 'writer', prompt: 'x', sessionId })).json().error, 'session_busy')
  await s.dispatch.cancel('acme', busy.runId)
})

test('with Accept: application/x-ndjson the 202 carries the run log from its first event', async (t) => {
  const s = await stage(t)
  const id = runId()
  const accept = { accept: 'application/x-ndjson' }
  const reply = await post(s, { profile: 'writer', prompt: 'hi', id }, accept, 'internal')
  assert.equal(reply.statusCode, 202)
  assert.equal(reply.headers['x-run-id'], id)
  const types = reply.body
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line).type)
  assert.deepEqual(types, ['progress', 'session_init', 'assistant', 'assistant', 'usage', 'result'])
  const again = await post(s, { profile: 'writer', prompt: 'hi', id }, accept, 'internal')
  assert.equal(again.body, reply.body)
  assert.equal(again.headers['x-session-id'], reply.headers['x-session-id'])
  assert.equal(s.runner.executed.length, 1)
  const other = await post(s, { profile: 'writer', prompt: 'something else', id }, accept, 'internal')
  assert.equal(other.statusCode, 409)
  assert.equal(other.json().error, 'conflict')
})

test('the SSE stream names events, numbers them, resumes after Last-Event-ID and hides the runtime session id', async (t) => {
  const s = await stage(t)
  const { runId: id } = await finished(s)
  const all = (await get(s, `/api/runs/${id}/stream`)).body
  const frames = all.trimEnd().split('\n\n')
  assert.deepEqual(
    frames.map((f) => f.split('\n').slice(0, 2)),
    [
      ['id: 1', 'event: progress'],
      ['id: 3', 'event: assistant'],
      ['id: 4', 'event: assistant'],
      ['id: 5', 'event: usage'],
      ['id: 6', 'event: result'],
    ],
  )
  assert.ok(!all.includes('vendor-'))
  assert.ok(!all.includes('runtimeSessionId'))
  const resumed = (await get(s, `/api/runs/${id}/stream`, { 'last-event-id': '4' })).body
  assert.equal(resumed, frames.slice(3).join('\n\n') + '\n\n')
  assert.equal((await get(s, `/api/runs/${id}/stream`, { 'last-event-id': 'garbage' })).body, all)
})

test('a reader who saw more than a killed conductor had stored is told the ending all the same', async (t) => {
  const s = await stage(t)
  const { runId: id } = await finished(s)
  const all = (await get(s, `/api/runs/${id}/stream`)).body
  const ending = `${all.trimEnd().split('\n\n').at(-1)!}\n\n`
  for (const seen of ['6', '7', '900']) {
    assert.equal((await get(s, `/api/runs/${id}/stream`, { 'last-event-id': seen })).body, ending, seen)
  }
})

test('the raw event log carries the runtime session id, from any seq on', async (t) => {
  const s = await stage(t, { profiles: [{ ...profileNamed('writer'), runtime: 'runtime_a' }] })
  const { runId: id } = await finished(s)
  const raw = (await get(s, `/api/runs/${id}/events`)).body
  assert.equal(parseLine(Buffer.from(raw.split('\n')[1]!))?.['type'], 'session_init')
  const rest = (await get(s, `/api/runs/${id}/events?after=3`)).body
  assert.equal(rest, raw.split('\n').slice(3).join('\n'))
})

test('DELETE cancels, is idempotent, and leaves a finished run as it was', async (t) => {
  const s = await stage(t)
  const cancel = (id: string) => s.kernel.listeners['conductor']!.inject({ method: 'DELETE', url: `/api/runs/${id}` })
  const done = await finished(s)
  assert.equal((await cancel(done.runId)).statusCode, 204)
  assert.equal((await s.store.findRun('acme', done.runId))?.status, 'ok')
  s.runner.script = endless
  const { runId: id, sessionId } = (await post(s, { profile: 'writer', prompt: 'x' })).json()
  assert.equal((await cancel(id)).statusCode, 204)
  assert.equal((await cancel(id)).statusCode, 204)
  const run = await s.store.findRun('acme', id)
  assert.equal(run?.status, 'cancelled')
  assert.equal(run.error?.code, 'cancelled')
  assert.equal(s.runner.aborted, 1)
  assert.equal((await s.store.getSession('acme', sessionId))?.status, 'idle')
  assert.equal((await cancel('unknown')).statusCode, 404)
  assert.equal((await cancel('not%20an%20id')).statusCode, 404)
})

test('lists are newest first and paged; a profile lists its own runs', async (t) => {
  const s = await stage(t)
  for (const profile of ['writer', 'other', 'writer']) await finished(s, { profile, prompt: 'x' })
  const all = await get(s, '/api/runs')
  assert.equal(all.headers['x-total-count'], '3')
  const ids = all.json().map((r: { runId: string }) => r.runId)
  const page = await get(s, '/api/runs?limit=1&offset=1')
  assert.deepEqual(
    page.json().map((r: { runId: string }) => r.runId),
    [ids[1]],
  )
  assert.match(String(page.headers['link']), /rel="next"/)
  assert.equal((await get(s, '/api/profiles/writer/runs')).json().length, 2)
  assert.equal((await get(s, '/api/runs?status=error')).json().length, 0)
  assert.equal((await get(s, '/api/runs?limit=201')).statusCode, 400)
})

test('a foreign run is an unknown run on every route', async (t) => {
  const s = await stage(t)
  const { runId: id } = await finished(s)
  const foreign = { authorization: 'globex' }
  for (const [method, url] of [
    ['GET', `/api/runs/${id}`],
    ['GET', `/api/runs/${id}/stream`],
    ['GET', `/api/runs/${id}/events`],
    ['DELETE', `/api/runs/${id}`],
  ] as const) {
    const reply = await s.kernel.listeners['conductor']!.inject({ method, url, headers: foreign })
    const unknown = await s.kernel.listeners['conductor']!.inject({
      method,
      url: url.replace(id, 'nope'),
      headers: foreign,
    })
    assert.equal(reply.statusCode, 404)
    const body = (text: string): unknown => ({ ...(JSON.parse(text) as object), request_id: '' })
    assert.deepEqual(body(reply.body), body(unknown.body))
  }
  assert.equal((await get(s, '/api/runs', foreign)).headers['x-total-count'], '0')
})

test('the internal listener serves what a gateway needs and nothing more', async (t) => {
  const s = await stage(t)
  const { runId: id } = await finished(s)
  const status = async (method: 'GET' | 'POST', url: string) =>
    (await s.kernel.listeners['internal']!.inject({ method, url })).statusCode
  assert.equal(await status('GET', `/api/runs/${id}`), 200)
  assert.equal(await status('GET', '/api/runs'), 404)
  assert.equal(await status('POST', `/api/runs/${id}/terminate`), 404)
})

test('runs are found by profile, session and time; what is no time is refused', async (t) => {
  const s = await stage(t)
  const first = (await post(s, { profile: 'writer', prompt: 'x' })).json()
  await post(s, { profile: 'other', prompt: 'y' })
  const { startedAt } = (await get(s, `/api/runs/${first.runId}`)).json()
  const found = async (query: string): Promise<string[]> =>
    (await get(s, `/api/runs?${query}`)).json().map((run: { subTask: { profile: string } }) => run.subTask.profile)
  assert.deepEqual(await found('profile=writer'), ['writer'])
  assert.deepEqual(await found(`sessionId=${first.sessionId}`), ['writer'])
  assert.deepEqual((await found(`from=${startedAt}`)).sort(), ['other', 'writer'])
  assert.deepEqual(await found(`to=${startedAt}`), [])
  assert.deepEqual(await found('from=2999-01-01T00:00:00Z'), [])
  assert.equal((await get(s, '/api/runs?from=yesterday')).statusCode, 400)
})

test('a run that is seen to be over is seen with its last event, also before this process knows that its end was stored', async (t) => {
  const told = Promise.withResolvers<void>()
  // Before the server is stopped, which waits for its runs.
  t.after(() => told.resolve())
  const s = await stage(t, {
    wrap: (store) =>
      meddling(store, {
        async finish(end) {
          const finished = await store.finish(end)
          await told.promise
          return finished
        },
      }),
  })
  const id = runId()
  await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id }, 0, new AbortController().signal)
  const detail = async () =>
    (
      await s.kernel.listeners['conductor']!.inject({ url: `/api/runs/${id}`, headers: { authorization: 'acme' } })
    ).json()
  await eventually('the run is over', async () => (await detail()).status === 'ok')
  assert.equal((await detail()).events.at(-1).type, 'result')
  told.resolve()
})
