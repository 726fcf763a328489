import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test, type TestContext } from 'node:test'
import { AppError } from '#kernel'
import { leaving } from '#contracts/runner'
import { runnerWire } from '#contracts/wire/runner'
import { peerOf, profile, runBody, until, wireOf } from './fixtures.ts'

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

test('cancel names the tenant, the run and perhaps the reason, and is idempotent', async (t) => {
  const { call, cancelled } = await wireOf(t)
  for (const query of ['', '', '?reason=timeout'])
    assert.equal((await call('DELETE', `/runner/runs/r9${query}`)).statusCode, 204)
  assert.deepEqual(cancelled, ['acme/r9', 'acme/r9', 'acme/r9/timeout'])
})

/** A run that says one line and goes on until its signal aborts, and why each of them ended. */
async function holding(t: TestContext, links: boolean) {
  const ended: unknown[] = []
  const { kernel, add, cancelled } = await wireOf(
    t,
    async function* (run, signal) {
      try {
        yield `{"seq":${run.firstSeq}}\n`
        if (!signal.aborted) await once(signal, 'abort')
        yield `{"type":"error","code":"${String(signal.reason)}"}\n`
      } finally {
        ended.push(signal.reason)
      }
    },
    true,
  )
  add('acme', 's1')
  return { kernel, ended, cancelled, peer: await peerOf(t, kernel.urls['runner']!, links) }
}

for (const links of [false, true]) {
  const over = links ? 'over a link' : 'over HTTP'

  test(`${over}: a reader that goes away ends its run, unless the run is kept; then it ends when that is said`, async (t) => {
    const { peer, ended } = await holding(t, links)
    const cases = [
      [0, 'gone', links ? 'cancelled' : 'client_gone'],
      [5_000, leaving, links ? leaving : 'client_gone'],
      // A closed connection says nothing: the run stays for whoever comes.
      [5_000, 'gone', links ? 'cancelled' : 'client_gone'],
      [5_000, 'timeout', links ? 'timeout' : 'client_gone'],
    ] as const
    for (const [keepMs, reason, heard] of cases) {
      const reader = new AbortController()
      const ask = { tenant: 'acme', body: { ...runBody, ...(keepMs ? { keepMs } : {}) }, signal: reader.signal }
      const { lines } = await peer.ask(runnerWire.execute, ask)
      assert.equal(String((await lines.next()).value), '{"seq":1}\n')
      const next = lines.next()
      reader.abort(reason)
      await assert.rejects(next)
      await until(() => ended.length > 0)
      assert.deepEqual(ended.splice(0), [heard])
    }
  })

  test(`${over}: another reader goes on in a run, and is refused one that is not here`, async (t) => {
    const { peer } = await holding(t, links)
    const from = { sessionId: 's1', runId: 'r1', afterSeq: 7, epoch: 2 }
    const { lines } = await peer.ask(runnerWire.attach, { tenant: 'acme', body: from })
    assert.equal(String((await lines.next()).value), '{"seq":8}\n')
    await lines.return!()
    const unknown = peer.ask(runnerWire.attach, { tenant: 'acme', body: { ...from, runId: 'r9' } })
    await assert.rejects(unknown, { code: 'unknown_run', status: 404 })
  })

  test(`${over}: a stopping listener ends the run, and its last line still goes out`, async (t) => {
    const { peer, kernel } = await holding(t, links)
    const { lines } = await peer.ask(runnerWire.execute, { tenant: 'acme', body: runBody })
    let text = String((await lines.next()).value)
    const stopped = kernel.stop()
    for await (const chunk of lines) text += String(chunk)
    await stopped
    assert.equal(text, '{"seq":1}\n{"type":"error","code":"shutdown"}\n')
  })
}
