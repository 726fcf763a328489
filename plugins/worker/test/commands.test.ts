import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { terminalOf, testEnvelope } from '#testing'
import { startScriptedRunner } from './scripted-runner.ts'
import { isAlive, newSession, pidIn, startWorker, until } from './support.ts'

const timeout = 30_000

test('a worker polls with its token, the protocol and the last command that it took', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity } = await startWorker(t, { url: runner.url })
  const first = await runner.until(() => runner.polls[0])
  assert.equal(first.path, `/runner/worker/${identity.sessionId}/poll`)
  assert.equal(first.headers.authorization, 'Bearer token-1')
  assert.equal(first.headers['x-agent-orc-worker-protocol'], '1')
  assert.deepEqual(Object.fromEntries(first.query), { after: '0', wait: '25000', tools: '1', links: '1' })
  assert.equal(runner.asked[0]!.path, `/runner/worker/${identity.sessionId}/state`, 'it looks for a conversation first')
  const id = runner.order(identity.sessionId, { kind: 'cancel', runId: 'unknown' })
  const second = await runner.until(() => runner.polls[1])
  assert.equal(second.query.get('after'), String(id))
})

test('a run is executed and its lines are uploaded', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity } = await startWorker(t, { url: runner.url })
  const envelope = testEnvelope({ sessionId: identity.sessionId, prompt: 'hello', firstSeq: 7 })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  const events = await runner.run(envelope.runId)
  assert.deepEqual(
    events.map(({ type, seq, runId }) => [type, seq, runId]),
    [['result', 7, envelope.runId]],
  )
  const upload = runner.asked.find(({ path }) => path.endsWith('/events'))!
  assert.equal(upload.headers.authorization, 'Bearer token-1')
  assert.equal(upload.headers['content-type'], 'application/x-ndjson')
  assert.equal(upload.headers['transfer-encoding'], 'chunked')
})

test('a command that comes again is executed once', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity, link } = await startWorker(t, { url: runner.url })
  const envelope = testEnvelope({ sessionId: identity.sessionId })
  // The answer to an old poll repeats commands that this worker has executed already.
  let again = 2
  runner.intercept((request, response) => {
    if (!request.url!.includes('/poll') || again-- <= 0) return false
    const commands = [{ id: 1, kind: 'run', envelope }]
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ commands }))
    return true
  })
  await runner.run(envelope.runId)
  await runner.until(() => runner.polls.length >= 3)
  assert.deepEqual(link.begun, [envelope.runId])
  assert.deepEqual(
    runner.polls.slice(0, 3).map(({ query }) => query.get('after')),
    ['0', '1', '1'],
  )
})

test('a run is cancelled while it is under way', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity, link } = await startWorker(t, { url: runner.url })
  const envelope = testEnvelope({ sessionId: identity.sessionId, prompt: 'hang' })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  await until(() => link.begun.length > 0, 'the run begins')
  runner.order(identity.sessionId, { kind: 'cancel', runId: envelope.runId })
  const last = terminalOf(await runner.run(envelope.runId))
  assert.equal(last.type === 'error' && last.code, 'cancelled')
})

test('a run that is not taken here is answered with one error event', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity } = await startWorker(t, { url: runner.url })
  const envelope = testEnvelope({ sessionId: identity.sessionId, prompt: 'refuse', firstSeq: 3 })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  const events = await runner.run(envelope.runId)
  assert.equal(events.length, 1)
  const { type, seq, code, message } = events[0] as { type: string; seq: number; code: string; message: string }
  assert.deepEqual([type, seq, code, message], ['error', 3, 'session_state_missing', 'It is not here.'])
})

test('a renewed token replaces the old one', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity } = await startWorker(t, { url: runner.url })
  runner.renew('token-2')
  await runner.until(() => runner.polls.at(-1)?.headers.authorization === 'Bearer token-2')
  const envelope = testEnvelope({ sessionId: identity.sessionId })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  await runner.run(envelope.runId)
  assert.equal(runner.asked.find(({ path }) => path.endsWith('/events'))!.headers.authorization, 'Bearer token-2')
})

test('a shutdown ends the role and no poll follows it', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity, ended, kernel } = await startWorker(t, { url: runner.url })
  await runner.until(() => runner.polls[0])
  runner.order(identity.sessionId, { kind: 'shutdown' })
  await ended
  await kernel.stop()
  assert.equal(runner.polls.length, 1)
})

test('a warm worker goes on as the worker of its session', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const session = newSession()
  runner.states.set(session, { bytes: Buffer.from('["before"]'), headers: { 'x-agent-orc-state-rev': '4' } })
  const { identity } = await startWorker(t, { url: runner.url, sessionId: 'slot-1' })
  runner.order('slot-1', { kind: 'bind', sessionId: session, token: 'token-of-session' })
  // The numbers of the new session's commands may start anew or go on.
  const poll = await runner.until(() => runner.polls.find(({ path }) => path.includes(session)))
  assert.equal(poll.headers.authorization, 'Bearer token-of-session')
  assert.equal(poll.query.get('after'), '0')
  assert.equal(identity.sessionId, session)
  const envelope = testEnvelope({ sessionId: session, prompt: 'after', resume: true })
  runner.order(session, { kind: 'run', envelope })
  const last = terminalOf(await runner.run(envelope.runId))
  assert.equal(last.type === 'result' && last.text, 'before, after')
  const stored = await runner.until(() => runner.states.get(session)?.headers['x-agent-orc-state-rev'] === '5')
  assert.ok(stored)
})

test('tools are offered in the poll, called and answered, several at once', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity, workspace } = await startWorker(t, { url: runner.url })
  const { sessionId } = identity
  const order = (callId: string, command: string): number =>
    runner.order(sessionId, { kind: 'tool', callId, name: 'shell', input: { command }, timeoutMs: 60_000 })
  assert.equal((await runner.until(() => runner.polls[0])).query.get('tools'), '1')
  order('c/1', 'echo $$ > pid; exec sleep 600')
  await until(() => pidIn(join(workspace, 'pid')) > 0, 'the first call is under way')
  order('c/2', 'echo done')
  await runner.until(() => runner.results.has('c/2'))
  assert.deepEqual(runner.results.get('c/2'), { ok: true, content: 'done\n[Exit code 0.]' })
  runner.order(sessionId, { kind: 'tool_cancel', callId: 'c/1' })
  await until(() => !isAlive(pidIn(join(workspace, 'pid'))), 'the call is stopped')
  assert.equal(runner.results.has('c/1'), false)
})

test('a worker that stops takes with it what its tools have started', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { identity, workspace, kernel } = await startWorker(t, { url: runner.url })
  const input = { command: 'echo $$ > pid; exec sleep 600' }
  runner.order(identity.sessionId, { kind: 'tool', callId: 'c1', name: 'shell', input, timeoutMs: 60_000 })
  await until(() => pidIn(join(workspace, 'pid')) > 0, 'the call is under way')
  await kernel.stop()
  await until(() => !isAlive(pidIn(join(workspace, 'pid'))), 'its process is gone')
})
