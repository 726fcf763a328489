import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type AppError, isAppError } from '#kernel'
import {
  beginLog,
  client,
  events,
  fakeConductor,
  json,
  linesFrom,
  logOf,
  recordingSigner,
  sessionId,
  signal,
  task,
} from './conductor.ts'

test('a run is submitted and followed from its first event in one signed request', async (t) => {
  const conductor = await fakeConductor(t)
  const signer = recordingSigner()
  const dispatch = client(t, conductor, signer)
  conductor.answer = (_seen, response) => {
    beginLog(response, 202, 'run_1').end(linesFrom('run_1', events))
  }
  const started = await dispatch.start('acme', { ...task, sessionId: 's' }, 0, signal)
  assert.deepEqual([started.runId, started.sessionId], ['run_1', sessionId])
  assert.equal(await logOf(started.events), linesFrom('run_1', events))
  const [seen] = conductor.seen
  assert.equal(conductor.seen.length, 1)
  assert.deepEqual([seen?.method, seen?.url], ['POST', '/api/runs'])
  assert.equal(seen?.headers.accept, 'application/x-ndjson')
  assert.equal(seen?.headers['x-chat-gateway-tenant'], 'acme')
  assert.deepEqual(JSON.parse(seen!.body.toString()), { ...task, sessionId: 's' })
  const [signed] = signer.signed
  assert.deepEqual([signed?.tenant, signed?.method, signed?.target], ['acme', 'POST', '/api/runs'])
  assert.deepEqual(Buffer.from(signed!.body), seen?.body)
})

test('an unreachable conductor is tried again for a moment, with the same run and a fresh signature', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  conductor.answer = (_seen, response) => {
    if (conductor.seen.length < 3) response.destroy()
    else beginLog(response, 202, 'run_1').end(linesFrom('run_1', events))
  }
  const started = await dispatch.start('acme', task, 0, signal)
  assert.equal(await logOf(started.events), linesFrom('run_1', events))
  assert.deepEqual(
    conductor.seen.map((seen) => JSON.parse(seen.body.toString()).id),
    ['run_1', 'run_1', 'run_1'],
  )
  assert.equal(new Set(conductor.seen.map((seen) => seen.headers['x-chat-gateway-nonce'])).size, 3)
  await conductor.stop()
  await assert.rejects(dispatch.start('acme', task, 0, signal), { code: 'upstream', status: 502 })
})

test('refusals keep their code, status and details; failures of the conductor are upstream', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  const cases = [
    [400, { error: 'unknown_profile: p' }, { code: 'unknown_profile: p', status: 400 }],
    [404, { error: 'not_found', message: 'No such session.' }, { code: 'not_found', status: 404 }],
    [409, { error: 'session_busy' }, { code: 'session_busy', status: 409 }],
    [
      402,
      { error: 'credits_exhausted', checkout_path: '/x' },
      { code: 'credits_exhausted', detail: { checkout_path: '/x' } },
    ],
    [401, { error: 'unauthorized' }, { code: 'upstream', status: 502 }],
    [500, { error: 'internal' }, { code: 'upstream', status: 502 }],
    [429, { error: 'rate_limited' }, { code: 'upstream', status: 502 }],
    [400, 'no json' as unknown as object, { code: 'upstream', status: 502 }],
    [302, {}, { code: 'upstream', status: 502 }],
  ] as const
  for (const [status, body, expected] of cases) {
    conductor.seen.length = 0
    conductor.answer = (_seen, response) => json(response, status, { request_id: 'r', ...body })
    const error = await dispatch.start('acme', task, 0, signal).catch((e: unknown) => e)
    assert.ok(isAppError(error), String(error))
    const { code, status: got, detail } = error
    assert.deepEqual({ code, status: got, detail }, { status: got, detail: {}, ...expected })
    // A refused signature is tried with the other key, nothing else again.
    assert.ok(status >= 500 || conductor.seen.length === (status === 401 ? 2 : 1), `${status} is not repeated`)
  }
})

test('a conductor that is stopping is asked again before it is upstream', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  conductor.answer = (_seen, response) => {
    if (conductor.seen.length === 1) json(response, 503, { error: 'unavailable', retryable: true })
    else beginLog(response, 202, 'run_1').end(linesFrom('run_1', events))
  }
  assert.equal((await dispatch.start('acme', task, 0, signal)).runId, 'run_1')
})

test('for a caller from memory a conductor is asked once, unless the run may have begun', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  const chat = { publicRunId: 'prun_1', conversationId: 'conv_1', publishedId: 'pub_1', continued: false }
  const remembered = { ...task, chat: { ...chat, admission: { keyId: 'key_1', revision: '7' } } }
  conductor.answer = (_seen, response) => json(response, 503, { error: 'unavailable', retryable: true })
  await assert.rejects(dispatch.start('acme', remembered, 0, signal), { code: 'upstream', retryable: true })
  assert.equal(conductor.seen.length, 1)
  // An answer that is lost says nothing of the run.
  conductor.answer = (_seen, response) => {
    if (conductor.seen.length === 2) response.destroy()
    else beginLog(response, 202, 'run_1').end(linesFrom('run_1', events))
  }
  assert.equal((await dispatch.start('acme', remembered, 0, signal)).runId, 'run_1')
})

test('find answers the summary, undefined for an unknown run, and upstream for everything else', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  const summary = {
    runId: 'run_1',
    sessionId,
    status: 'ok',
    subTask: { id: 'run_1', sessionId, profile: 'p', prompt: 'x' },
    startedAt: new Date().toISOString(),
    result: 'all',
  }
  conductor.answer = (_seen, response) => json(response, 200, summary)
  assert.deepEqual(await dispatch.find('acme', 'run_1'), summary)
  assert.equal(conductor.seen[0]?.url, '/api/runs/run_1?events=false')
  conductor.answer = (_seen, response) => json(response, 404, { error: 'not_found' })
  assert.equal(await dispatch.find('acme', 'run_1'), undefined)
  conductor.answer = (_seen, response) => json(response, 200, { hello: 'world' })
  await assert.rejects(dispatch.find('acme', 'run_1'), { code: 'upstream' })
  conductor.answer = (_seen, response) => json(response, 503, { error: 'unavailable' })
  await assert.rejects(dispatch.find('acme', 'run_1'), { code: 'upstream' })
  await conductor.stop()
  await assert.rejects(dispatch.find('acme', 'run_1'), { code: 'upstream', status: 502 })
})

test('cancel is a DELETE, and a run that is unknown there is cancelled already', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  conductor.answer = (_seen, response) => void response.writeHead(204).end()
  await dispatch.cancel('acme', 'run_1')
  assert.deepEqual([conductor.seen[0]?.method, conductor.seen[0]?.url], ['DELETE', '/api/runs/run_1'])
  conductor.answer = (_seen, response) => json(response, 404, { error: 'not_found' })
  await dispatch.cancel('acme', 'run_1')
  conductor.answer = (_seen, response) => json(response, 401, { error: 'unauthorized' })
  await assert.rejects(dispatch.cancel('acme', 'run_1'), { code: 'upstream' })
})

test('ping proves the way to the conductor and the keys', async (t) => {
  const conductor = await fakeConductor(t)
  const dispatch = client(t, conductor)
  await dispatch.ping()
  conductor.answer = (_seen, response) => json(response, 401, { error: 'unauthorized' })
  await assert.rejects(dispatch.ping(), (error: AppError) => /CHAT_GATEWAY_SIGNING_KEY_CURRENT/.test(error.message))
  await conductor.stop()
  await assert.rejects(dispatch.ping(), { code: 'upstream' })
})

test('while keys are rotated a conductor that knows only the previous key is asked again with that one, and then first', async (t) => {
  const conductor = await fakeConductor(t)
  let knows = 'PREVIOUS'
  conductor.answer = (seen, response) => {
    const isKnown = seen.headers['x-chat-gateway-key-id'] === knows
    json(response, isKnown ? 404 : 401, { error: isKnown ? 'not_found' : 'unauthorized' })
  }
  const dispatch = client(t, conductor)
  const keysUsed = async (): Promise<unknown[]> => {
    const from = conductor.seen.length
    assert.equal(await dispatch.find('acme', 'run_1'), undefined)
    return conductor.seen.slice(from).map(({ headers }) => headers['x-chat-gateway-key-id'])
  }
  assert.deepEqual(await keysUsed(), ['CURRENT', 'PREVIOUS'])
  assert.deepEqual(await keysUsed(), ['PREVIOUS'])
  knows = 'CURRENT'
  assert.deepEqual(await keysUsed(), ['PREVIOUS', 'CURRENT'])
  assert.deepEqual(await keysUsed(), ['CURRENT'])
  assert.equal(new Set(conductor.seen.map(({ headers }) => headers['x-chat-gateway-nonce'])).size, 6, 'signed anew')
  knows = 'neither'
  await assert.rejects(dispatch.find('acme', 'run_1'), { code: 'upstream', status: 502 })
})
