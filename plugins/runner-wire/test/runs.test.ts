import assert from 'node:assert/strict'
import { request as httpRequest } from 'node:http'
import { test } from 'node:test'
import { AppError } from '#kernel'
import { profile, runBody, until, wireOf } from './fixtures.ts'

test('execute streams NDJSON', async (t) => {
  const { call, add } = await wireOf(t, async function* (run) {
    yield `{"type":"progress","runId":"${run.runId}"}\n`
    yield '{"type":"result"}\n'
  })
  add('acme', 's1')
  const reply = await call('POST', '/runner/runs', { body: runBody })
  assert.equal(reply.statusCode, 200)
  assert.equal(reply.headers['content-type'], 'application/x-ndjson')
  assert.equal(reply.body, '{"type":"progress","runId":"r1"}\n{"type":"result"}\n')
  const created = await call('POST', '/runner/runs', {
    body: { ...runBody, sessionId: 's2', create: { profile: profile() } },
  })
  assert.equal(created.statusCode, 200)
})

test('a refusal is a status, not a stream', async (t) => {
  const { call, add } = await wireOf(t, async function* () {
    yield* []
    throw new AppError('session_busy', 409)
  })
  add('acme', 's1')
  const busy = await call('POST', '/runner/runs', { body: runBody })
  assert.deepEqual([busy.statusCode, busy.json<{ error: string }>().error], [409, 'session_busy'])
  for (const bad of [{}, { ...runBody, firstSeq: 0 }, { ...runBody, timeoutMs: '5' }]) {
    assert.equal((await call('POST', '/runner/runs', { body: bad })).statusCode, 400)
  }
})

test('cancel names the tenant and the run, and is idempotent', async (t) => {
  const { call, cancelled } = await wireOf(t)
  for (const _ of [1, 2]) assert.equal((await call('DELETE', '/runner/runs/r9')).statusCode, 204)
  assert.deepEqual(cancelled, ['acme/r9', 'acme/r9'])
})

test('a caller that goes away aborts its run', async (t) => {
  const signals: AbortSignal[] = []
  let over = 0
  const { kernel, add } = await wireOf(
    t,
    async function* (_run, signal) {
      signals.push(signal)
      try {
        yield '{"type":"progress"}\n'
        if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
      } finally {
        over++
      }
    },
    true,
  )
  add('acme', 's1')
  const request = httpRequest(`${kernel.urls['runner']}/runner/runs`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-tenant-id': 'acme' },
  })
  request.on('error', () => {})
  request.on('response', (response) => {
    response.on('error', () => {})
    response.once('data', () => request.destroy())
  })
  request.end(JSON.stringify(runBody))
  await until(() => over === 1)
  assert.equal(signals[0]!.aborted, true)
  assert.equal(signals[0]!.reason, 'client_gone')
})

test('a stopping listener ends the run, and its last line still goes out', async (t) => {
  let started = false
  const { kernel, add } = await wireOf(
    t,
    async function* (_run, signal) {
      yield '{"type":"progress"}\n'
      started = true
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
      yield `{"type":"error","code":"${String(signal.reason)}"}\n`
    },
    true,
  )
  add('acme', 's1')
  const reading = fetch(`${kernel.urls['runner']}/runner/runs`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-tenant-id': 'acme' },
    body: JSON.stringify(runBody),
  }).then((response) => response.text())
  await until(() => started)
  await kernel.stop()
  assert.equal(await reading, '{"type":"progress"}\n{"type":"error","code":"shutdown"}\n')
})
