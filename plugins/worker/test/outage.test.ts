import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { IncomingMessage } from 'node:http'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { terminalOf, testEnvelope } from '#testing'
import { floodLine } from './fake-link.ts'
import { startScriptedRunner } from './scripted-runner.ts'
import { newSession, startWorker, until } from './support.ts'

const timeout = 60_000
const isUpload = (request: IncomingMessage): boolean => request.url!.includes('/events')

test('a worker that starts before its runner finds it', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  await runner.stop()
  const { kernel, identity } = await startWorker(t, { url: runner.url })
  await runner.restart()
  await runner.until(() => runner.polls[0])
  const envelope = testEnvelope({ sessionId: identity.sessionId })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  assert.equal(terminalOf(await runner.run(envelope.runId)).type, 'result')
  await kernel.stop()
})

test(
  'a runner that restarts in the middle of a poll is found again, and says once that it was away',
  { timeout },
  async (t) => {
    const runner = await startScriptedRunner(t)
    const { kernel, identity } = await startWorker(t, { url: runner.url })
    await runner.until(() => runner.polls[0])
    await runner.stop()
    await until(() => kernel.logs.some(({ msg }) => msg === 'the runner cannot be reached'), 'it is noticed')
    const before = runner.polls.length
    await runner.restart()
    await runner.until(() => runner.polls.length > before)
    const envelope = testEnvelope({ sessionId: identity.sessionId })
    runner.order(identity.sessionId, { kind: 'run', envelope })
    await runner.run(envelope.runId)
    const said = kernel.logs.map(({ msg }) => msg).filter((msg) => /the runner/.test(String(msg)))
    assert.deepEqual(said, ['the runner cannot be reached', 'the runner is back'])
  },
)

test('a runner that is busy or fails is asked again, at its start too', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const answers = [503, 502, 503, 500, 503, 429]
  runner.intercept((_request, response) => {
    const status = answers.shift()
    if (status === undefined) return false
    response.writeHead(status, { 'content-type': 'application/json' }).end('{"error":"unavailable"}')
    return true
  })
  const { identity } = await startWorker(t, { url: runner.url })
  const envelope = testEnvelope({ sessionId: identity.sessionId })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  assert.equal(terminalOf(await runner.run(envelope.runId)).type, 'result')
})

const refusals = {
  'a superseded worker': { status: 401, error: 'invalid or missing worker token: superseded', on: '/poll' },
  'an expired token at the start': { status: 401, error: 'invalid or missing worker token: expired', on: '/state' },
  'another protocol': { status: 400, error: 'unsupported_worker_protocol', on: '/poll' },
}
for (const [what, { status, error, on }] of Object.entries(refusals)) {
  test(`${what} ends the role, which says why`, { timeout }, async (t) => {
    const runner = await startScriptedRunner(t)
    runner.intercept((request, response) => {
      if (!request.url!.includes(on)) return false
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify({ error }))
      return true
    })
    const { failed, kernel } = await startWorker(t, { url: runner.url })
    assert.match((await failed).message, new RegExp(`worker: The runner .* worker: ${error}`))
    await kernel.stop()
    assert.ok(runner.polls.length <= 1)
  })
}

test('a run is stopped when its upload breaks', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  runner.intercept((request) => {
    if (!isUpload(request)) return false
    request.once('data', () => request.socket.destroy())
    return true
  })
  const { identity, link } = await startWorker(t, { url: runner.url })
  const envelope = testEnvelope({ sessionId: identity.sessionId, prompt: 'hang' })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  await until(() => link.stopped.length > 0, 'the run is stopped')
  // And the next one is executed.
  runner.intercept(undefined)
  const next = testEnvelope({ sessionId: identity.sessionId })
  runner.order(identity.sessionId, { kind: 'run', envelope: next })
  assert.equal(terminalOf(await runner.run(next.runId)).type, 'result')
})

test('a run is stopped when the runner answers before its end', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  runner.intercept((request, response) => {
    if (!isUpload(request)) return false
    response.writeHead(413, { 'content-type': 'application/json' }).end('{"error":"event_upload_too_large"}')
    request.resume()
    return true
  })
  const { identity, link, kernel } = await startWorker(t, { url: runner.url })
  runner.order(identity.sessionId, {
    kind: 'run',
    envelope: testEnvelope({ sessionId: identity.sessionId, prompt: 'hang' }),
  })
  await until(() => link.stopped.length > 0, 'the run is stopped')
  const logged = kernel.logs.find(({ msg }) => msg === 'a run could not be uploaded')
  assert.match(JSON.stringify(logged), /413: event_upload_too_large/)
})

test('a run that ended while the runner was away is uploaded when it is back', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity, link } = await startWorker(t, { url: runner.url })
  await runner.until(() => runner.polls[0])
  const envelope = testEnvelope({ sessionId: identity.sessionId, prompt: 'hello' })
  let gone: Promise<void> | undefined
  runner.intercept((request, response) => {
    if (!request.url!.includes('/poll') || gone) return false
    const body = JSON.stringify({ commands: [{ id: 1, kind: 'run', envelope }] })
    // The connection is gone by the time that this answer is read.
    response.writeHead(200, { 'content-type': 'application/json', connection: 'close' }).end(body)
    response.once('finish', () => (gone = runner.stop()))
    return true
  })
  runner.renew('the poll that is open now')
  await until(() => link.sessions.has(identity.sessionId), 'the run ends')
  await gone
  await runner.restart()
  assert.equal(terminalOf(await runner.run(envelope.runId)).type, 'result')
})

test('a runner that reads slowly holds the run back, and gets all of it', { timeout }, async (t) => {
  const lines = 2_000
  const runner = await startScriptedRunner(t)
  let upload: IncomingMessage | undefined
  const { identity, link } = await startWorker(t, { url: runner.url })
  runner.intercept((request, response) => {
    if (!isUpload(request)) return false
    upload = request
    request.once('end', () => response.writeHead(204).end())
    return true
  })
  const envelope = testEnvelope({ sessionId: identity.sessionId, prompt: `flood ${lines}`, timeoutMs: 60_000 })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  await until(() => upload !== undefined && link.flooded > 0, 'the upload begins')
  let last = -1
  let still = 0
  await until(async () => {
    still = link.flooded === last ? still + 1 : 0
    last = link.flooded
    await sleep(10)
    return still === 20 || last === lines
  }, 'the run is held back')
  // The two sockets buffer some megabytes, and the whole run has 128.
  assert.ok(link.flooded < 500, `${link.flooded} lines were made that nobody read`)
  let bytes = 0
  upload!.on('data', (chunk: Buffer) => (bytes += chunk.length))
  await once(upload!, 'end')
  assert.equal(link.flooded, lines)
  assert.ok(bytes > lines * floodLine.length)
})

test('a worker that stops lets its run end, or interrupts it', { timeout }, async (t) => {
  for (const [drain, code] of [
    ['10s', 'cancelled'],
    ['0s', 'interrupted'],
  ] as const) {
    const runner = await startScriptedRunner(t)
    const sessionId = newSession()
    const { kernel, link } = await startWorker(t, { url: runner.url, sessionId, drain })
    const envelope = testEnvelope({ sessionId, prompt: 'hang' })
    runner.order(sessionId, { kind: 'run', envelope })
    await until(() => link.begun.length > 0, 'the run begins')
    await runner.until(() => runner.asked.find(({ path }) => path.endsWith('/events')))
    const stopped = kernel.stop()
    // Here the lifetime of the worker ends, not its process.
    if (drain === '10s') link.release()
    const last = terminalOf(await runner.run(envelope.runId))
    assert.equal(last.type === 'error' && last.code, code)
    await stopped
  }
})
