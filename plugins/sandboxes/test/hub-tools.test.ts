import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type ClientRequest, request as httpRequest } from 'node:http'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { type PollAnswer, workerPaths } from '#contracts/wire/worker'
import type { WorkerChannel } from '../hub/worker.ts'
import { pollOf, startHub, until } from './hub.ts'

const connected = () => AbortSignal.timeout(60_000)
const never = new AbortController().signal

test('a tool is called in the worker, and cancelled there when nobody waits', async (t) => {
  const { open } = await startHub(t)
  const { channel, worker } = await open()
  let cancelled = 0
  const polling = worker({
    async tool(name, input, signal) {
      if (name === 'slow') {
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        cancelled++
      }
      return { ok: name !== 'fails', content: JSON.stringify(input) }
    },
  })
  await channel.connected(connected())
  const limits = { signal: never, timeoutMs: 60_000 }
  assert.deepEqual(await channel.callTool('shell', { command: 'ls' }, limits), {
    ok: true,
    content: '{"command":"ls"}',
  })
  assert.deepEqual(await channel.callTool('fails', {}, limits), { ok: false, content: '{}' })
  const abort = new AbortController()
  const slow = channel.callTool('slow', {}, { ...limits, signal: abort.signal })
  await until(() => polling.commands.length === 3, 'the worker has it')
  abort.abort()
  assert.equal((await slow).ok, false)
  const late = channel.callTool('slow', {}, { signal: never, timeoutMs: 1 })
  assert.deepEqual(await late, { ok: false, content: 'The sandbox took too long.' })
  await until(() => cancelled === 2, 'the worker is told')
})

test('a call that its worker never saw is taken back', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const poll = pollOf(urls['workers']!, channel)
  assert.equal((await poll('wait=0&tools=1')).status, 204)
  const abort = new AbortController()
  const call = channel.callTool('shell', {}, { signal: abort.signal, timeoutMs: 60_000 })
  abort.abort()
  assert.equal((await call).ok, false)
  assert.equal((await poll('wait=0&tools=1')).status, 204)
})

test('a call that was answered is no longer kept for a worker that never says what it has taken', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const poll = pollOf(urls['workers']!, channel)
  assert.equal((await poll('wait=0&tools=1')).status, 204)
  const call = channel.callTool('write_file', { content: 'x' }, { signal: never, timeoutMs: 60_000 })
  const { commands } = (await (await poll('wait=0&tools=1')).json()) as PollAnswer
  const [command] = commands
  assert.ok(command?.kind === 'tool')
  const reply = await fetch(urls['workers']! + workerPaths(channel.sessionId).tool(command.callId), {
    method: 'PUT',
    body: '{"ok":true,"content":"done"}',
    headers: { authorization: `Bearer ${channel.token}`, 'content-type': 'application/json' },
  })
  assert.equal(reply.status, 204)
  assert.deepEqual(await call, { ok: true, content: 'done' })
  assert.equal((await poll('after=0&wait=0&tools=1')).status, 204)
})

test('no tool is called while too much waits for a worker', async (t) => {
  const { open, urls } = await startHub(t)
  const call = (channel: WorkerChannel, mebibytes: number, signal = never) =>
    channel.callTool('write_file', { content: 'x'.repeat(mebibytes * 1024 * 1024) }, { signal, timeoutMs: 60_000 })
  const tooMuch = { ok: false, content: 'Too much waits for this sandbox.' }
  const taking = async () => {
    const { channel } = await open()
    assert.equal((await pollOf(urls['workers']!, channel)('wait=0&tools=1')).status, 204)
    return channel
  }
  const [one, other] = [await taking(), await taking()]
  const waiting = Array.from({ length: 4 }, () => call(one, 8))
  assert.deepEqual(await call(one, 0), tooMuch)
  const fine = new AbortController()
  const elsewhere = call(other, 0, fine.signal)
  // It takes everything with its next poll, and has room again.
  assert.equal((await pollOf(urls['workers']!, one)('after=4&wait=0&tools=1')).status, 204)
  waiting.push(call(one, 0))

  // Each call that its caller leaves is one more command.
  fine.abort()
  assert.equal((await elsewhere).content, 'The call was cancelled.')
  const many = Array.from({ length: 1_100 }, () => call(other, 0))
  assert.deepEqual(await many.at(-1), tooMuch)
  one.close()
  other.close()
  for (const result of await Promise.all([...waiting, ...many.slice(0, 1_000)]))
    assert.equal(result.content, 'The sandbox has left.')
})

test('no tool is called while too much waits for all workers of a tenant', async (t) => {
  const { open, urls } = await startHub(t)
  const take = async (tenantId: string) => {
    const { channel } = await open(undefined, tenantId)
    const poll = pollOf(urls['workers']!, channel)
    assert.equal((await poll('wait=0&tools=1')).status, 204)
    const call = (mebibytes: number, signal = never) =>
      channel.callTool('write_file', { content: 'x'.repeat(mebibytes * 1024 * 1024) }, { signal, timeoutMs: 60_000 })
    return { channel, poll, call }
  }
  const tooMuch = { ok: false, content: 'Too much waits for this sandbox.' }
  const [one, two, three, victim] = await Promise.all(['acme', 'acme', 'acme', 'globex'].map(take))
  const leaving = new AbortController()
  const calls = [9, 9, 9].flatMap((size) => [one!.call(size), two!.call(size, leaving.signal)])
  calls.push(three!.call(9), three!.call(2))
  assert.deepEqual(await three!.call(0), tooMuch)
  const fine = new AbortController()
  const elsewhere = victim!.call(0, fine.signal)
  fine.abort()
  assert.equal((await elsewhere).content, 'The call was cancelled.')

  // Room is given back by a worker that takes its calls, by callers that leave, and by a worker that leaves.
  assert.equal((await one!.poll('after=3&wait=0&tools=1')).status, 204)
  calls.push(one!.call(27))
  assert.deepEqual(await three!.call(0), tooMuch)
  leaving.abort()
  calls.push(two!.call(27))
  assert.deepEqual(await three!.call(0), tooMuch)
  one!.channel.close()
  calls.push(three!.call(0))
  two!.channel.close()
  three!.channel.close()
  const [four, five] = await Promise.all(['acme', 'acme'].map(take))
  calls.push(four!.call(31), four!.call(31), five!.call(1))
  four!.channel.close()
  five!.channel.close()
  const texts = (await Promise.all(calls)).map(({ content }) => content)
  assert.equal(texts.filter((text) => text === 'The call was cancelled.').length, 3)
  assert.equal(texts.filter((text) => text === 'The sandbox has left.').length, calls.length - 3)
})

test('a worker that takes no tools, leaves or is silent fails the call; an answer that nobody waits for is 404', async (t) => {
  const { open } = await startHub(t, { lostMs: 100 })
  const without = await open()
  const polling = without.worker()
  await without.channel.connected(connected())
  const limits = { signal: never, timeoutMs: 60_000 }
  assert.deepEqual(await without.channel.callTool('shell', {}, limits), {
    ok: false,
    content: 'The worker of this sandbox does not execute tools.',
  })
  const reply = await polling.call(workerPaths(without.channel.sessionId).tool('x'), {
    method: 'PUT',
    body: '{"ok":true,"content":""}',
    headers: { 'content-type': 'application/json' },
  })
  assert.equal(reply.status, 404)

  const hang = { tool: () => new Promise<never>(() => {}) }
  const silent = await open()
  const stopping = silent.worker(hang)
  await silent.channel.connected(connected())
  const unanswered = silent.channel.callTool('shell', {}, limits)
  await until(() => stopping.commands.length === 1, 'the worker has it')
  stopping.stop()
  assert.deepEqual(await unanswered, { ok: false, content: 'The sandbox does not answer.' })

  const closed = await open()
  closed.worker(hang)
  await closed.channel.connected(connected())
  const abandoned = closed.channel.callTool('shell', {}, limits)
  closed.channel.close()
  assert.deepEqual(await abandoned, { ok: false, content: 'The sandbox has left.' })
  assert.deepEqual(await closed.channel.callTool('shell', {}, limits), { ok: false, content: 'The sandbox has left.' })
})

test('results of one worker have 4 MiB at once, on both listeners together', async (t) => {
  const bodies: ClientRequest[] = []
  t.after(() => bodies.forEach((request) => request.destroy()))
  const { open, urls } = await startHub(t)
  const [one, other] = [(await open()).channel, (await open()).channel]
  const headersOf = ({ token }: WorkerChannel) => ({
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
  })
  const answer = async (channel: WorkerChannel): Promise<unknown> => {
    const body = '{"ok":true,"content":""}'
    const url = urls['workers']! + workerPaths(channel.sessionId).tool('x')
    const reply = await fetch(url, { method: 'PUT', body, headers: headersOf(channel) })
    return ((await reply.json()) as { error: string }).error
  }
  for (const listener of ['runner', 'workers', 'runner', 'workers']) {
    const headers = { ...headersOf(one), 'content-length': 1024 * 1024, expect: '100-continue' }
    const url = urls[listener]! + workerPaths(one.sessionId).tool('x')
    const request = httpRequest(url, { method: 'PUT', headers })
    request.on('error', () => {}).flushHeaders()
    bodies.push(request)
  }
  await Promise.all(bodies.map((request) => once(request, 'continue')))
  assert.equal(await answer(one), 'too_many_session_requests')
  assert.equal(await answer(other), 'unknown_call')
  for (const request of bodies) request.destroy()
  while ((await answer(one)) !== 'unknown_call') await turn()
})
