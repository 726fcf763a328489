import assert from 'node:assert/strict'
import { request as httpRequest } from 'node:http'
import { test } from 'node:test'
import { pollMs, type PollAnswer, workerPaths } from '#contracts/wire/worker'
import { startProxy, testEnvelope } from '#testing'
import { begin, listeners, newSession, plainTokens, pollOf, startHub, tokenOf, wayOf } from './hub.ts'

test('a command comes with every poll until one says that it was taken', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const poll = pollOf(urls['workers']!, channel)
  assert.equal((await poll('wait=0')).status, 204)
  begin(channel, { runId: 'run-1' })
    .next()
    .catch(() => {})
  for (let again = 0; again < 2; again++) {
    const { commands } = (await (await poll('wait=0')).json()) as PollAnswer
    assert.deepEqual(
      commands.map(({ id, kind }) => [id, kind]),
      [[1, 'run']],
    )
  }
  assert.equal((await poll('after=1&wait=0')).status, 204)
  assert.equal((await poll('after=0&wait=0')).status, 204)
})

test('an answer that is lost on its way to the worker is given again', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const proxy = await startProxy(t, urls['workers']!)
  proxy.inspect(() => 'cut_answer')
  const lost = pollOf(new URL(proxy.url).origin, channel)('').catch((error: Error) => error)
  await channel.connected(AbortSignal.timeout(10_000))
  begin(channel, { runId: 'run-1' })
    .next()
    .catch(() => {})
  assert.ok((await lost) instanceof Error)
  const answer = (await (await pollOf(urls['workers']!, channel)('')).json()) as PollAnswer
  assert.deepEqual(
    answer.commands.map(({ id, kind }) => [id, kind]),
    [[1, 'run']],
  )
})

test('a poll is held open until there is a command', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const waiting = pollOf(urls['workers']!, channel)('')
  await channel.connected(AbortSignal.timeout(10_000))
  begin(channel, { runId: 'run-1' })
    .next()
    .catch(() => {})
  const { commands } = (await (await waiting).json()) as PollAnswer
  assert.equal(commands[0]!.kind, 'run')
})

test('a newer poll takes the place of an older one, which is told', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const poll = pollOf(urls['workers']!, channel)
  const older = poll('')
  await channel.connected(AbortSignal.timeout(10_000))
  const newer = poll('')
  const refused = await older
  assert.equal(refused.status, 409)
  assert.equal(((await refused.json()) as { error: string }).error, 'poll_superseded')
  begin(channel, { runId: 'run-1' })
    .next()
    .catch(() => {})
  assert.equal((await newer).status, 200)
})

test('a poll without the protocol header, or of another version, is refused', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const url = urls['workers']! + workerPaths(channel.sessionId).poll
  for (const version of [undefined, '2', '']) {
    const reply = await fetch(url, {
      headers: {
        authorization: `Bearer ${channel.token}`,
        ...(version === undefined ? {} : { 'x-agent-orc-worker-protocol': version }),
      },
    })
    assert.equal(reply.status, 400)
    assert.equal(((await reply.json()) as { error: string }).error, 'unsupported_worker_protocol')
  }
})

test('a token of which less than half is left is replaced with the answer', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const claims = { tenantId: 'acme', sessionId: channel.sessionId, generation: channel.generation }
  const hour = 60 * 60 * 1_000
  const of = (hours: number) =>
    pollOf(urls['workers']!, { ...claims, token: tokenOf(claims, Date.now() + hours * hour) })('wait=0')
  assert.equal((await of(13)).status, 204)
  const renewed = await of(11)
  assert.equal(renewed.status, 200)
  const { commands, token } = (await renewed.json()) as PollAnswer
  assert.deepEqual(commands, [])
  const { expiresAt } = await plainTokens.verify(`Bearer ${token}`)
  assert.ok(expiresAt > Date.now() + 23 * hour)
})

test('a role without a sandbox provider has no workers: every callback is 503', async (t) => {
  const { urls, hub } = await startHub(t, { served: false })
  const channel = await hub.open('acme', newSession())
  const paths = workerPaths(channel.sessionId)
  const callbacks = [
    ['GET', paths.poll],
    ['POST', `${paths.events}?runId=r`],
    ['GET', paths.state],
    ['PUT', paths.state],
    ['DELETE', paths.state],
    ['PUT', paths.tool('c')],
    ['POST', `${paths.models('openai')}/chat/completions`],
    ['GET', `${paths.models('openai')}/models`],
    ['POST', paths.mcpServer('m')],
    ['GET', paths.mcpServer('m')],
    ['DELETE', paths.mcpServer('m')],
  ] as const
  for (const listener of listeners) {
    for (const [method, path] of callbacks) {
      const headers = { authorization: `Bearer ${channel.token}` }
      const reply = await fetch(urls[listener]! + path, { method, headers })
      assert.equal(reply.status, 503, `${method} ${path}`)
      assert.equal(((await reply.json()) as { error: string }).error, 'dynamic_workers_unavailable')
    }
  }
})

test('a worker of a warm pool becomes that of a session, and its former name is refused from then on', async (t) => {
  const { open, hub, urls } = await startHub(t)
  const { channel: slot, worker } = await open('slot-1')
  const polling = worker()
  await slot.connected(AbortSignal.timeout(10_000))
  const sessionId = newSession()
  const channel = await slot.bind(sessionId)
  channel.setState({ bytes: Buffer.from('{}'), contentType: 'application/json' })
  await channel.connected(AbortSignal.timeout(10_000))
  assert.equal(polling.sessionId, sessionId)
  assert.equal(polling.token, channel.token)
  const chunks: Buffer[] = []
  const envelope = testEnvelope({ sessionId })
  for await (const chunk of channel.run(envelope, new AbortController().signal, wayOf(urls['workers'])))
    chunks.push(chunk)
  assert.match(Buffer.concat(chunks).toString(), /"type":"result"/)
  assert.deepEqual(
    polling.commands.map(({ id, kind }) => [id, kind]),
    [
      [1, 'bind'],
      [2, 'run'],
    ],
  )
  assert.equal((await pollOf(urls['workers']!, slot)('wait=0')).status, 401)
  await assert.rejects(hub.authorize(`Bearer ${slot.token}`, 'acme', 'slot-1'), { status: 401 })
  await hub.authorize(`Bearer ${channel.token}`, 'acme', sessionId)
  // Its former channel has nothing left to close.
  slot.close()
  await hub.authorize(`Bearer ${channel.token}`, 'acme', sessionId)
})

test('nothing behind a bind is seen under the former name', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel: slot } = await open('slot-1')
  const channel = await slot.bind(newSession())
  begin(channel, { runId: 'run-1' })
    .next()
    .catch(() => {})
  for (let again = 0; again < 2; again++) {
    const { commands } = (await (await pollOf(urls['workers']!, slot)('wait=0')).json()) as PollAnswer
    assert.deepEqual(
      commands.map(({ id, kind }) => [id, kind]),
      [[1, 'bind']],
    )
  }
  const { commands } = (await (await pollOf(urls['workers']!, channel)('after=1&wait=0')).json()) as PollAnswer
  assert.deepEqual(
    commands.map(({ id, kind }) => [id, kind]),
    [[2, 'run']],
  )
})

test('shutting down waits until the worker has the command, and not for ever', async (t) => {
  const { open } = await startHub(t)
  const { channel, worker } = await open()
  const polling = worker()
  await channel.connected(AbortSignal.timeout(10_000))
  await channel.shutdown()
  assert.equal(await polling.left, undefined)
  assert.deepEqual(
    polling.commands.map(({ kind }) => kind),
    ['shutdown'],
  )
  const { channel: silent } = await open()
  await silent.shutdown()
})

test('an open poll of a closed channel is refused at once, and so is whoever waits for it', async (t) => {
  const { open } = await startHub(t)
  const { channel, worker } = await open()
  const polling = worker()
  await channel.connected(AbortSignal.timeout(10_000))
  channel.close()
  assert.equal(await polling.left, 401)
  await assert.rejects(channel.connected(AbortSignal.timeout(10_000)), { code: 'sidecar_unreachable' })
  const { channel: other } = await open()
  const waiting = other.connected(AbortSignal.timeout(10_000))
  other.close()
  await assert.rejects(waiting, { code: 'sidecar_unreachable' })
  const leaving = new AbortController()
  const { channel: third } = await open()
  const given = third.connected(leaving.signal)
  leaving.abort(new Error('enough'))
  await assert.rejects(given, /enough/)
})

// A poll that is not ended outlasts the time limit of this test.
test('a stopping runner does not wait for open polls', { timeout: pollMs - 2_000 }, async (t) => {
  const { open, kernel } = await startHub(t)
  const { channel, worker } = await open()
  worker()
  await channel.connected(AbortSignal.timeout(10_000))
  await kernel.stop()
})

test('nobody waits for the state of a worker that left its poll', async (t) => {
  const { open, urls } = await startHub(t, { lostMs: 50 })
  const { channel } = await open()
  const request = httpRequest(urls['workers']! + workerPaths(channel.sessionId).poll, {
    headers: { authorization: `Bearer ${channel.token}`, 'x-agent-orc-worker-protocol': '1' },
  })
  request.on('error', () => {}).end()
  await channel.connected(AbortSignal.timeout(10_000))
  request.destroy()
  assert.equal(await channel.exportState(), undefined)
})
