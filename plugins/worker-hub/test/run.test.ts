import assert from 'node:assert/strict'
import { test } from 'node:test'
import { collectRun, testEnvelope } from '#testing'
import { plainTokens } from './tokens.ts'
import { startHub, until } from './support.ts'

test('a run goes to the worker that polls, and its events come back as they are sent', async (t) => {
  const { open, urls } = await startHub(t, { tokens: plainTokens })
  const { channel, worker } = await open()
  const polling = worker({
    async *run({ prompt }) {
      yield { type: 'assistant', text: `You said ${prompt}.`, delta: true }
      yield { type: 'result', text: `You said ${prompt}.`, finishReason: 'stop' }
    },
  })
  await channel.connected(AbortSignal.timeout(10_000))
  assert.ok(channel.lastPollAt! > Date.now() - 10_000)
  const envelope = testEnvelope({ sessionId: channel.sessionId, prompt: 'hi', firstSeq: 3 })
  const link = { run: (sent: typeof envelope, signal: AbortSignal) => channel.run(sent, signal, urls['workers']!) }
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
  const { open, urls } = await startHub(t, { tokens: plainTokens })
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
  await channel.connected(AbortSignal.timeout(10_000))
  const abort = new AbortController()
  const { sessionId } = channel
  const source = channel.run(testEnvelope({ sessionId, prompt: 'wait' }), abort.signal, urls['workers']!)
  const chunks = source[Symbol.asyncIterator]()
  assert.match(String((await chunks.next()).value), /assistant/)
  abort.abort(new Error('enough'))
  await assert.rejects(chunks.next(), /enough/)
  await until(() => cancelled, 'the worker is told')
  assert.equal(polling.commands.at(-1)!.kind, 'cancel')
  const link = {
    run: (sent: Parameters<typeof channel.run>[0], signal: AbortSignal) => channel.run(sent, signal, urls['workers']!),
  }
  assert.equal((await collectRun(link, testEnvelope({ sessionId, prompt: 'go' }))).at(-1)!.type, 'result')
})
