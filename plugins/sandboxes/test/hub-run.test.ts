import assert from 'node:assert/strict'
import { test } from 'node:test'
import { workerPaths } from '#contracts/wire/worker'
import { collectRun, testEnvelope } from '#testing'
import { begin, newSession, pollOf, startHub, until, wayOf } from './hub.ts'

const never = new AbortController().signal
const connected = () => AbortSignal.timeout(60_000)

test('a run goes to the worker that polls, and its events come back as they are sent', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel, worker } = await open()
  const polling = worker({
    async *run({ prompt }) {
      yield { type: 'assistant', text: `You said ${prompt}.`, delta: true }
      yield { type: 'result', text: `You said ${prompt}.`, finishReason: 'stop' }
    },
  })
  await channel.connected(connected())
  assert.ok(channel.lastPollAt! > Date.now() - 10_000)
  const envelope = testEnvelope({ sessionId: channel.sessionId, prompt: 'hi', firstSeq: 3 })
  const link = {
    run: (sent: typeof envelope, signal: AbortSignal) => channel.run(sent, signal, wayOf(urls['workers'])),
  }
  for (const runId of ['run-1', 'run-2']) {
    const events = await collectRun(link, { ...envelope, runId })
    assert.deepEqual(
      events.map(({ type, seq }) => [type, seq]),
      [
        ['assistant', 3],
        ['result', 4],
      ],
    )
  }
  assert.deepEqual(
    polling.commands.map(({ id, kind }) => [id, kind]),
    [
      [1, 'run'],
      [2, 'run'],
    ],
  )
})

test('an aborted run is cancelled in its worker, and the next one starts', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel, worker } = await open()
  let cancelled = false
  const polling = worker({
    async *run({ prompt }, signal) {
      yield { type: 'assistant', text: 'a', delta: true }
      if (prompt === 'wait') await new Promise((resolve) => signal.addEventListener('abort', resolve))
      cancelled = signal.aborted
      yield { type: 'result', text: 'a', finishReason: 'stop' }
    },
  })
  await channel.connected(connected())
  const abort = new AbortController()
  const { sessionId } = channel
  const chunks = begin(channel, { prompt: 'wait' }, abort.signal)
  assert.match(String((await chunks.next()).value), /assistant/)
  abort.abort(new Error('enough'))
  await assert.rejects(chunks.next(), /enough/)
  await until(() => cancelled, 'the worker is told')
  assert.equal(polling.commands.at(-1)!.kind, 'cancel')
  const link = {
    run: (sent: Parameters<typeof channel.run>[0], signal: AbortSignal) =>
      channel.run(sent, signal, wayOf(urls['workers'])),
  }
  assert.equal((await collectRun(link, testEnvelope({ sessionId, prompt: 'go' }))).at(-1)!.type, 'result')
})

const lost = { code: 'sidecar_lost', retryable: true }

test('a worker that vanishes in the middle of a run ends it, and the next worker has the next one', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel, worker } = await open()
  const vanishing = worker({
    async *run() {
      yield { type: 'assistant', text: 'a', delta: true }
      await new Promise(() => {})
    },
  })
  await channel.connected(connected())
  const chunks = begin(channel)
  assert.match(String((await chunks.next()).value), /assistant/)
  vanishing.stop()
  await assert.rejects(chunks.next(), lost)
  assert.equal((await chunks.next()).done, true)
  const next = await open(channel.sessionId)
  next.worker()
  await next.channel.connected(connected())
  const link = {
    run: (...[sent, signal]: [Parameters<typeof channel.run>[0], AbortSignal]) =>
      next.channel.run(sent, signal, wayOf(urls['workers'])),
  }
  assert.equal((await collectRun(link, testEnvelope({ sessionId: channel.sessionId }))).at(-1)!.type, 'result')
})

test('a worker that takes a run and is silent from then on ends it', async (t) => {
  const { open, urls } = await startHub(t, { lostMs: 100 })
  const { channel } = await open()
  const chunks = begin(channel)
  const first = chunks.next()
  first.catch(() => {})
  assert.equal((await pollOf(urls['workers']!, channel)('wait=0')).status, 200)
  await assert.rejects(first, lost)
  // If the worker comes back, it is told that the run is over.
  const { commands } = (await (await pollOf(urls['workers']!, channel)('after=1&wait=0')).json()) as {
    commands: { kind: string }[]
  }
  assert.deepEqual(
    commands.map(({ kind }) => kind),
    ['cancel'],
  )
})

test('a run that no worker has seen is taken back without a word', async (t) => {
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const abort = new AbortController()
  const first = begin(channel, {}, abort.signal).next()
  abort.abort(new Error('enough'))
  await assert.rejects(first, /enough/)
  assert.equal((await pollOf(urls['workers']!, channel)('wait=0')).status, 204)
})

test("a worker's refusal before it begins rejects the run, as a status of a static sidecar would", async (t) => {
  const { open } = await startHub(t)
  const { channel, worker } = await open()
  worker({
    async *run({ prompt }) {
      yield { type: 'error', code: prompt, message: 'No.' }
    },
  })
  await channel.connected(connected())
  const first = async (prompt: string, resume: boolean): Promise<string> => {
    const chunks = begin(channel, { prompt, resume })
    const { value } = await chunks.next()
    await chunks.return!()
    return String(value)
  }
  await assert.rejects(first('session_state_missing', true), { code: 'session_state_missing', status: 409 })
  await assert.rejects(first('session_busy', false), { code: 'session_busy', status: 409 })
  for (const [code, resume] of [
    ['session_state_missing', false],
    ['model_error', true],
  ] as const) {
    assert.match(await first(code, resume), new RegExp(`"code":"${code}"`))
  }
})

test('the addresses and credentials in an envelope are those of the worker', async (t) => {
  const { open } = await startHub(t)
  const { channel, worker } = await open()
  const polling = worker()
  await channel.connected(connected())
  const { sessionId } = channel
  const link = {
    run: (sent: Parameters<typeof channel.run>[0], signal: AbortSignal) =>
      channel.run(sent, signal, wayOf('http://10.0.2.2:7061/')),
  }
  await collectRun(
    link,
    testEnvelope({
      sessionId,
      sessionMcpUrl: 'http://127.0.0.1:7060/runner/sessions/x/mcp',
      sessionMcpToken: 'not this one',
      mcpServers: [
        {
          name: 'tickets',
          url: 'https://mcp.example.com/x',
          headers: { authorization: 'Bearer secret' },
          tools: [{ name: 'read', digest: 'd' }],
        },
        { name: 'old', url: 'https://mcp.example.com/sse', transport: 'sse' },
      ],
      mcpUnavailable: [{ server: 'gone', message: 'It is gone.' }],
    }),
  )
  await collectRun(link, testEnvelope({ sessionId, sessionMcpToken: 'not this one' }))
  const envelopes = polling.commands.map((command) => (command.kind === 'run' ? command.envelope : undefined))
  const { sessionMcpUrl, sessionMcpToken, mcpServers, mcpUnavailable } = envelopes[0]!
  assert.deepEqual(
    mcpUnavailable?.map(({ server }) => server),
    ['gone', 'old'],
  )
  assert.deepEqual(
    { sessionMcpUrl, sessionMcpToken, mcpServers },
    {
      sessionMcpUrl: `http://10.0.2.2:7061/runner/sessions/${sessionId}/mcp`,
      sessionMcpToken: channel.token,
      mcpServers: [
        {
          name: 'tickets',
          url: `http://10.0.2.2:7061/runner/worker/${sessionId}/mcp-servers/tickets`,
          headers: { authorization: `Bearer ${channel.token}` },
          tools: [{ name: 'read', digest: 'd' }],
        },
      ],
    },
  )
  assert.doesNotMatch(JSON.stringify(envelopes), /secret|not this one|mcp\.example/)
  assert.ok(!('sessionMcpUrl' in envelopes[1]!) && !('sessionMcpToken' in envelopes[1]!))
})

test('a new generation refuses the former one at once, its upload under way too', async (t) => {
  const { open, hub, urls } = await startHub(t)
  const { channel, worker } = await open()
  let answer: Promise<unknown> | undefined
  const former = worker({
    async *run(_envelope, signal) {
      yield { type: 'assistant', text: 'a', delta: true }
      answer = new Promise((resolve) => signal.addEventListener('abort', () => resolve(signal.reason)))
      await new Promise(() => {})
    },
  })
  await channel.connected(connected())
  const { sessionId } = channel
  const chunks = begin(channel)
  await chunks.next()
  await until(() => answer !== undefined, 'the run waits')
  const next = await hub.open('acme', sessionId)
  await assert.rejects(chunks.next(), lost)
  assert.match(String(await answer), /answered 401/)
  assert.equal(await former.left, 401)
  const refused = await pollOf(urls['workers']!, channel)('wait=0')
  assert.equal(((await refused.json()) as { error: string }).error, 'invalid or missing worker token: superseded')
  assert.notEqual(next.generation, channel.generation)
  assert.equal((await pollOf(urls['workers']!, next)('wait=0')).status, 204)
  await assert.rejects(begin(channel).next(), {
    code: 'sidecar_unreachable',
    retryable: true,
  })
})

test('events of a run that is over, is unknown, or comes already are refused', async (t) => {
  const { open } = await startHub(t)
  const { channel, worker } = await open()
  const polling = worker({
    async *run() {
      yield { type: 'assistant', text: 'a', delta: true }
      await new Promise(() => {})
    },
  })
  await channel.connected(connected())
  const send = (runId: string) =>
    polling.call(`${workerPaths(channel.sessionId).events}?runId=${runId}`, { method: 'POST', body: 'x\n' })
  assert.equal((await send('nothing')).status, 404)
  const abort = new AbortController()
  const chunks = begin(channel, { runId: 'run-1' }, abort.signal)
  await chunks.next()
  assert.equal((await send('run-1')).status, 404)
  abort.abort(new Error('enough'))
  await assert.rejects(chunks.next(), /enough/)
  assert.equal((await send('run-1')).status, 404)
  assert.equal((await polling.call(workerPaths(channel.sessionId).events, { method: 'POST', body: 'x\n' })).status, 400)
})

test('one worker has one run at a time', async (t) => {
  const { open } = await startHub(t)
  const { channel } = await open(newSession())
  const run = (signal: AbortSignal) => begin(channel, {}, signal).next()
  const abort = new AbortController()
  const first = run(abort.signal)
  await assert.rejects(run(never), { code: 'session_busy', status: 409 })
  abort.abort(new Error('enough'))
  await assert.rejects(first, /enough/)
  const again = new AbortController()
  const third = run(again.signal)
  again.abort(new Error('enough'))
  await assert.rejects(third, /enough/)
})
