import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { AppError } from '#kernel'
import { leaving } from '#contracts/runner'
import { runnerWire, tenantHeader } from '#contracts/wire/runner'
import { createPeers, type Peer } from '#kit'
import { answer, codeOf, execute, hang, type Line, run, runnerOf, types, until } from './fixtures.ts'

test('a run is streamed as NDJSON', async (t) => {
  const f = await runnerOf(t, answer)
  const reply = await f.call('POST', '/runner/runs', { body: run() })
  assert.equal(reply.statusCode, 200)
  assert.equal(reply.headers['content-type'], 'application/x-ndjson')
  const lines = reply.body.split('\n')
  assert.equal(lines.pop(), '')
  assert.deepEqual(types(lines.map((line) => JSON.parse(line) as Line)), ['progress', 'assistant', 'result'])
})

test('a refusal is a status, not a stream', async (t) => {
  const f = await runnerOf(t, hang)
  const running = execute(f)
  const busy = await f.call('POST', '/runner/runs', { body: run({ runId: 'r2' }) })
  assert.deepEqual([busy.statusCode, busy.json<{ error: string }>().error], [409, 'session_busy'])
  for (const bad of [{}, { ...run(), firstSeq: 0 }, { ...run(), timeoutMs: '5' }]) {
    assert.equal((await f.call('POST', '/runner/runs', { body: bad })).statusCode, 400)
  }
  const cancel = (tenant: string) => f.call('DELETE', '/runner/runs/r1?reason=timeout', { tenant })
  assert.equal((await cancel('globex')).statusCode, 204)
  assert.equal(f.runner.runs.size, 1)
  assert.equal((await cancel('acme')).statusCode, 204)
  assert.equal(codeOf(await running), 'timeout')
  assert.equal((await cancel('acme')).statusCode, 204)
})

/** How a conductor reaches the runner: over HTTP alone, or over a link. */
async function peerOf(t: TestContext, url: string, links: boolean): Promise<Peer> {
  const peers = createPeers({
    links,
    connectMs: 2_000,
    timeoutMs: 5_000,
    identity: { tenantHeader },
    faults: {
      lost: ({ cause }) => new AppError('lost', 502, { cause }),
      failed: (options) => new AppError('bad_answer', 502, options),
    },
  })
  t.after(() => peers.close())
  const peer = peers.at(url)
  while (links && !peer.linked) await peer.ask(runnerWire.info, {})
  return peer
}

/** A runner whose runs go on until they are ended, and a way to it. */
async function holding(t: TestContext, links: boolean) {
  const f = await runnerOf(t, hang, {}, undefined, true)
  return { f, peer: await peerOf(t, f.kernel.urls['runner']!, links) }
}
const never = new AbortController().signal

for (const links of [false, true]) {
  const over = links ? 'over a link' : 'over HTTP'

  test(`${over}: a reader that goes away ends its run, unless the run is kept; then it ends when that is said`, async (t) => {
    const { f, peer } = await holding(t, links)
    const cases = [
      [0, 'gone', links ? 'cancelled' : 'client_gone', 'over'],
      [60_000, leaving, links ? leaving : 'client_gone', 'goes on'],
      // A closed connection does not end the run: another reader may come.
      [60_000, 'gone', links ? 'cancelled' : 'client_gone', links ? 'over' : 'goes on'],
      [60_000, 'timeout', links ? 'timeout' : 'client_gone', links ? 'over' : 'goes on'],
    ] as const
    const heard: AbortSignal[] = []
    const { execute } = f.runner
    Object.assign(f.runner, {
      execute: (...args: Parameters<typeof execute>) => (heard.push(args[2]), execute(...args)),
    })
    for (const [i, [keepMs, reason, reads, becomes]] of cases.entries()) {
      const id = `r${i}`
      const reader = new AbortController()
      const body = run({ runId: id, sessionId: id, ...(keepMs ? { keepMs } : {}) })
      const { lines } = await peer.ask(runnerWire.execute, { tenant: 'acme', body, signal: reader.signal })
      assert.match(String((await lines.next()).value), /runner_accepted/)
      await until(() => f.signals.length === i + 1)
      const rest = (async () => {
        while (!(await lines.next()).done);
      })()
      reader.abort(reason)
      await assert.rejects(rest)
      await until(() => heard[i]!.aborted)
      assert.equal(heard[i]!.reason, reads)
      assert.equal(f.signals[i]!.aborted, becomes === 'over')
      f.runner.runs.cancel('acme', id)
    }
  })

  test(`${over}: another reader goes on in a run, and is refused one that is not here`, async (t) => {
    const { f, peer } = await holding(t, links)
    const body = run({ keepMs: 60_000, epoch: 1 })
    const first = await peer.ask(runnerWire.execute, { tenant: 'acme', body, signal: never })
    await first.lines.next()
    const from = { sessionId: run().sessionId, runId: 'r1', afterSeq: 1, epoch: 2 }
    const { lines } = await peer.ask(runnerWire.attach, { tenant: 'acme', body: from })
    assert.match(String((await lines.next()).value), /"seq":2,/)
    f.runner.runs.cancel('acme', 'r1')
    assert.match(String((await lines.next()).value), /"code":"cancelled"/)
    const unknown = peer.ask(runnerWire.attach, { tenant: 'acme', body: { ...from, runId: 'r9' } })
    await assert.rejects(unknown, { code: 'unknown_run', status: 404 })
  })

  test(`${over}: a stopping listener ends the run, and its last line still goes out`, async (t) => {
    const { peer, f } = await holding(t, links)
    const { lines } = await peer.ask(runnerWire.execute, { tenant: 'acme', body: run() })
    let text = String((await lines.next()).value)
    const stopped = f.stop()
    for await (const chunk of lines) text += String(chunk)
    await stopped
    assert.match(text, /"type":"error","runId":"r1".*"code":"runner_stopping".*\n$/)
  })
}
