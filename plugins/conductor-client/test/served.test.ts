import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test, type TestContext } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { AppError, definePlugin, notFound } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'
import { type RunDispatch, type RunSummary } from '#contracts/runs'
import { signedHeaders } from '#contracts/signing'
import { conductorWire, sessionIdHeader } from '#contracts/wire/conductor'
import { acceptLinks, type Admission, serve } from '#kit'
import { testKernel } from '#testing'
import { createRemoteDispatch } from '../index.ts'
import { conductorPeers } from '../peer.ts'
import { events, linesFrom, logOf, recordingSigner, say, sessionId, signal, task } from './conductor.ts'

/** A conductor that executes what a test says, over HTTP and links. */
interface Served {
  readonly dispatch: RunDispatch
  readonly url: string
  readonly asked: string[]
  /** The events of every run. */
  log: readonly RuntimeEvent[]
  /** Closes the connection after so many events of an answer. */
  cutAfter: number | undefined
  refuse: AppError | undefined
  readonly left: unknown[]
  stop(): Promise<void>
}

/** Accepts every signature: other tests cover those. */
const admitted: Admission = {
  admit: async () => {},
  callerOf: (_access, headers) => ({ tenantId: String(headers[signedHeaders.tenant]), role: 'admin', keyId: 'k' }),
}

async function served(t: TestContext, links: boolean): Promise<Served> {
  const cut: (() => void)[] = []
  async function* follow(runId: string, after: number, reader: AbortSignal): AsyncGenerator<Buffer> {
    const { cutAfter, log } = conductor
    conductor.cutAfter = undefined
    const end = cutAfter === undefined ? log.length : Math.min(log.length, after + cutAfter)
    for (let at = after; at < end; at += 100) {
      yield Buffer.from(linesFrom(runId, log.slice(0, Math.min(end, at + 100)), at + 1))
    }
    if (cutAfter !== undefined) {
      // What was written is read before the connection goes.
      await turn()
      for (const close of cut.splice(0)) close()
    }
    if (end === log.length && log.at(-1)?.type === 'result') return
    if (!reader.aborted) await once(reader, 'abort')
    conductor.left.push(reader.reason)
  }
  const plugin = definePlugin({
    name: 'served-conductor',
    async setup({ routes }) {
      routes('internal', async (app) => {
        acceptLinks(app, admitted)
        serve(app, conductorWire.start, ({ body, query, headers, signal: reader }) => {
          conductor.asked.push(`start ${body.id} after ${query.after ?? 0} of ${String(headers[signedHeaders.tenant])}`)
          if (conductor.refuse) throw conductor.refuse
          return { lines: follow(body.id!, query.after ?? 0, reader), headers: { [sessionIdHeader]: sessionId } }
        })
        serve(app, conductorWire.events, ({ params, query, signal: reader }) => {
          conductor.asked.push(`events after ${query.after ?? 0}`)
          if (params.id === 'unknown') throw notFound()
          return { lines: follow(params.id, query.after ?? 0, reader) }
        })
        serve(app, conductorWire.find, ({ params, query }) => {
          assert.equal(query.events, false)
          if (params.id !== 'run_1') throw notFound()
          return { json: summary }
        })
        serve(app, conductorWire.cancel, ({ params }) => {
          conductor.asked.push(`cancel ${params.id}`)
          if (params.id === 'unknown') throw notFound()
        })
      })
      return {}
    },
  })
  const kernel = await testKernel(t, [plugin], { listeners: ['internal'], listen: true })
  kernel.listeners['internal']!.server.on('connection', (socket) => cut.push(() => socket.destroy()))
  const url = kernel.urls['internal']!
  const peers = conductorPeers(recordingSigner(), { links })
  t.after(() => peers.close())
  const peer = peers.at(url)
  const conductor: Served = {
    dispatch: createRemoteDispatch(peer, {}, 500),
    url,
    asked: [],
    log: events,
    cutAfter: undefined,
    refuse: undefined,
    left: [],
    stop: () => kernel.stop(),
  }
  while (links && !peer.linked) await conductor.dispatch.ping()
  return conductor
}

const summary: RunSummary = {
  runId: 'run_1',
  sessionId,
  status: 'ok',
  subTask: { id: 'run_1', sessionId, profile: 'p', prompt: 'x' },
  startedAt: '2026-01-01T00:00:00.000Z',
  result: 'all',
}

for (const links of [false, true]) {
  const over = links ? 'over a link' : 'over HTTP'

  test(`${over}: a run is started and followed in one exchange, from where its reader is`, async (t) => {
    const conductor = await served(t, links)
    const chat = { publicRunId: 'prun_1', conversationId: 'conv_1', publishedId: 'pub_1', continued: false }
    const started = await conductor.dispatch.start('acme', { ...task, chat }, 0, signal)
    assert.deepEqual([started.runId, started.sessionId], ['run_1', sessionId])
    assert.equal(await logOf(started.events), linesFrom('run_1', events))
    const again = await conductor.dispatch.start('acme', task, 4, signal)
    assert.equal(await logOf(again.events, 4), linesFrom('run_1', events, 5))
    assert.deepEqual(conductor.asked, ['start run_1 after 0 of acme', 'start run_1 after 4 of acme'])
  })

  test(`${over}: a log that is cut goes on where it was, each event once`, async (t) => {
    const conductor = await served(t, links)
    for (const cutAfter of [0, 1, 5, 9]) {
      conductor.asked.length = 0
      conductor.cutAfter = cutAfter
      const { events: log } = await conductor.dispatch.start('acme', task, 0, signal)
      assert.equal(await logOf(log), linesFrom('run_1', events), `cut after ${cutAfter}`)
      assert.ok(conductor.asked.length >= 2)
    }
  })

  test(`${over}: a refusal keeps its code and detail; only what certainly began nothing may be repeated`, async (t) => {
    const conductor = await served(t, links)
    const start = () => conductor.dispatch.start('acme', task, 0, signal)
    conductor.refuse = new AppError('credits_exhausted', 402, { detail: { checkout_path: '/x' } })
    await assert.rejects(start(), { code: 'credits_exhausted', status: 402, detail: { checkout_path: '/x' } })
    conductor.refuse = new AppError('no_runner', 503, { retryable: true })
    await assert.rejects(start(), { code: 'upstream', status: 502, retryable: true })
    assert.ok(conductor.asked.length > 2, 'it was asked again')
    conductor.asked.length = 0
    conductor.refuse = new AppError('runner_failed', 502)
    await assert.rejects(start(), { code: 'upstream', status: 502, retryable: false })
    assert.equal(conductor.asked.length, 1)
  })

  test(`${over}: find, cancel and following of runs that are unknown`, async (t) => {
    const { dispatch, asked } = await served(t, links)
    assert.deepEqual(await dispatch.find('acme', 'run_1'), summary)
    assert.equal(await dispatch.find('acme', 'run_2'), undefined)
    await dispatch.cancel('acme', 'run_1')
    await dispatch.cancel('acme', 'unknown')
    assert.deepEqual(asked, ['cancel run_1', 'cancel unknown'])
    await assert.rejects(logOf(dispatch.follow('acme', 'unknown', 0, signal)), { code: 'not_found', status: 404 })
  })

  test(`${over}: a reader that leaves is known to have left, and many do not wait for one another`, async (t) => {
    const conductor = await served(t, links)
    conductor.log = [say('first')]
    const readers = Array.from({ length: 50 }, () => new AbortController())
    const logs = readers.map((reader, i) =>
      conductor.dispatch.follow('acme', `run_${i}`, 0, reader.signal)[Symbol.asyncIterator](),
    )
    for (const log of logs) assert.equal((await log.next()).value?.count, 1)
    const rest = logs.map((log) => log.next())
    for (const reader of readers) reader.abort()
    for (const next of rest) await assert.rejects(next)
    while (conductor.left.length < 50) await turn()
    assert.deepEqual(new Set(conductor.left), new Set([links ? 'cancelled' : 'client_gone']))
  })

  test(`${over}: a reader that pauses holds its conductor back`, async (t) => {
    const conductor = await served(t, links)
    conductor.log = [...Array.from({ length: 4_000 }, () => say('x'.repeat(5_000))), events.at(-1)!]
    const log = conductor.dispatch.follow('acme', 'run_1', 0, signal)[Symbol.asyncIterator]()
    let count = (await log.next()).value?.count ?? 0
    for (let i = 0; i < 50; i++) await turn()
    let largest = 0
    for (;;) {
      const { done, value } = await log.next()
      if (done) break
      largest = Math.max(largest, value.lines.length)
      count += value.count
    }
    assert.equal(count, 4_001)
    assert.ok(largest < 2 * 1024 * 1024, `${largest} bytes were held`)
  })
}
