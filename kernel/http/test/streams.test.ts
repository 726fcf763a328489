import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Agent, request as httpRequest, type IncomingMessage } from 'node:http'
import { test, type TestContext } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { access, type Chunk, definePlugin, lastEventId, ndjson, sse, sseFrame, type StreamEnd } from '#kernel'
import { createStreamRegistry } from '../streams.ts'
import { testKernel } from '#testing'

type Source = (signal: AbortSignal) => AsyncIterable<Chunk>

/** A kernel on a real port whose `/sse` and `/lines` answer with the given source. */
async function serving(t: TestContext, source: Source, heartbeatMs = 15_000) {
  const plugin = definePlugin({
    name: 'streams',
    async setup(ctx) {
      ctx.routes('gateway', async (app) => {
        app.get('/sse', access('public'), (request, reply) => {
          void reply.header('access-control-allow-origin', 'https://app.example')
          return sse(request, reply, source, { heartbeatMs })
        })
        app.get('/lines', access('public'), (request, reply) => ndjson(request, reply, source))
        app.get('/since', access('public'), async (request) => ({ since: lastEventId(request) }))
      })
      return {}
    },
  })
  return testKernel(t, [plugin], { listeners: ['gateway'], listen: true })
}

const open = async (url: string): Promise<IncomingMessage> => {
  const request = httpRequest(url, { agent: false }).end()
  request.on('error', () => {})
  const [reply] = (await once(request, 'response')) as [IncomingMessage]
  reply.on('error', () => {})
  return reply
}

const text = async (reply: IncomingMessage): Promise<string> => {
  let all = ''
  for await (const chunk of reply) all += chunk
  return all
}

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })

test('a stream has the headers of SSE, keeps those set before, and sends frames with ids', async (t) => {
  const kernel = await serving(t, async function* () {
    yield sseFrame('delta', '{"text":"a"}', 1)
    yield sseFrame('done', '{}')
  })
  const reply = await open(`${kernel.urls['gateway']}/sse`)
  assert.equal(reply.headers['content-type'], 'text/event-stream')
  assert.equal(reply.headers['cache-control'], 'no-store')
  assert.equal(reply.headers['x-accel-buffering'], 'no')
  assert.equal(reply.headers['access-control-allow-origin'], 'https://app.example')
  assert.match(String(reply.headers['x-request-id']), /^req_/)
  assert.equal(await text(reply), 'id: 1\nevent: delta\ndata: {"text":"a"}\n\nevent: done\ndata: {}\n\n')
})

test('headers leave before the first chunk exists', async (t) => {
  let release = (): void => {}
  const kernel = await serving(t, async function* () {
    await new Promise<void>((resolve) => {
      release = resolve
    })
    yield 'late\n'
  })
  const reply = await open(`${kernel.urls['gateway']}/lines`)
  assert.equal(reply.statusCode, 200)
  release()
  assert.equal(await text(reply), 'late\n')
})

test('HEAD of a stream answers its headers at once, never asks the source, and leaves the connection usable', async (t) => {
  let asked = 0
  const kernel = await serving(t, async function* (signal) {
    asked++
    yield ': begun\n\n'
    await aborted(signal)
  })
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  t.after(() => agent.destroy())
  for (const path of ['/sse', '/lines', '/since']) {
    const request = httpRequest(`${kernel.urls['gateway']}${path}`, { agent, method: 'HEAD' }).end()
    const [reply] = (await once(request, 'response')) as [IncomingMessage]
    assert.equal(reply.statusCode, 200)
    assert.equal(await text(reply), '')
    if (path === '/sse') assert.equal(reply.headers['content-type'], 'text/event-stream')
  }
  assert.equal(asked, 0)
})

test('a slow reader is not written to: the source waits, and memory stays bounded', async (t) => {
  const chunk = Buffer.alloc(64 * 1024, 0x61)
  const total = 2_000
  let produced = 0
  const kernel = await serving(t, async function* () {
    while (produced < total) {
      produced++
      yield chunk
    }
  })
  const reply = await open(`${kernel.urls['gateway']}/lines`)
  reply.pause()
  // The source stops by itself well before the end: what it made sits in the sockets of both sides.
  let before = -1
  while (produced !== before) {
    before = produced
    for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setTimeout(resolve, 2))
  }
  assert.ok(produced < total / 2, `${produced} chunks were made for a reader that takes none`)
  let received = 0
  for await (const part of reply) received += (part as Buffer).length
  assert.equal(received, total * chunk.length)
})

test('what was sent is let go while its stream waits for more', async (t) => {
  let sent: WeakRef<Uint8Array> | undefined
  const snapshot = (): Uint8Array => {
    const chunk = Buffer.alloc(100_000, '\n')
    sent = new WeakRef(chunk)
    return chunk
  }
  const kernel = await serving(t, async function* (signal) {
    yield snapshot()
    await aborted(signal)
  })
  const reply = await open(`${kernel.urls['gateway']}/sse`)
  for (let taken = 0; taken < 100_000;) {
    const [chunk] = (await once(reply, 'data')) as [Buffer]
    taken += chunk.length
  }
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  for (let tries = 0; tries < 50 && sent!.deref(); tries++) {
    await new Promise(setImmediate)
    collect()
  }
  const isHeld = sent!.deref() !== undefined
  reply.destroy()
  assert.ok(!isHeld)
})

test('a client that goes away aborts the source with client_gone', async (t) => {
  let reason: StreamEnd | undefined
  let ended = (): void => {}
  const over = new Promise<void>((resolve) => {
    ended = resolve
  })
  const kernel = await serving(t, async function* (signal) {
    try {
      yield 'hello\n'
      await aborted(signal)
      reason = signal.reason as StreamEnd
    } finally {
      ended()
    }
  })
  const reply = await open(`${kernel.urls['gateway']}/lines`)
  await once(reply, 'data')
  reply.destroy()
  await over
  assert.equal(reason, 'client_gone')
})

test('a client that left while the handler was still deciding aborts the source too', async (t) => {
  let decide = (): void => {}
  let arrived = (): void => {}
  const asked = new Promise<void>((resolve) => {
    arrived = resolve
  })
  let ended = (_reason: unknown): void => {}
  const reason = new Promise((resolve) => {
    ended = resolve
  })
  const plugin = definePlugin({
    name: 'deciding',
    async setup(ctx) {
      ctx.routes('gateway', async (app) => {
        app.get('/lines', access('public'), async (request, reply) => {
          arrived()
          await new Promise<void>((resolve) => {
            decide = resolve
          })
          return ndjson(request, reply, async function* (signal) {
            await aborted(signal)
            ended(signal.reason)
            yield 'unseen\n'
          })
        })
      })
      return {}
    },
  })
  const kernel = await testKernel(t, [plugin], { listeners: ['gateway'], listen: true })
  const request = httpRequest(`${kernel.urls['gateway']}/lines`, { agent: false }).end()
  request.on('error', () => {})
  await asked
  const server = kernel.listeners.gateway!.server
  request.destroy()
  await until(async () => (await connections(server)) === 0)
  decide()
  assert.equal(await reason, 'client_gone')
})

test('stopping ends every open stream with the terminal bytes of its source', async (t) => {
  const kernel = await serving(t, async function* (signal) {
    yield 'first\n'
    await aborted(signal)
    yield `${String(signal.reason)}\n`
  })
  const replies = await Promise.all([1, 2, 3].map(() => open(`${kernel.urls['gateway']}/lines`)))
  const texts = replies.map(text)
  await kernel.stop()
  assert.deepEqual(await Promise.all(texts), Array(3).fill('first\nshutdown\n'))
})

test('a source that fails before or in the middle tears its stream, is logged, and leaves the listener usable', async (t) => {
  const kernel = await serving(t, async function* () {
    yield 'first\n'
    throw new Error('broken source')
  })
  const reply = await open(`${kernel.urls['gateway']}/lines`)
  await assert.rejects(text(reply))
  assert.ok(kernel.logs.some((line) => line['msg'] === 'stream failed'))
  assert.equal((await kernel.listeners.gateway!.inject('/since')).statusCode, 200)
})

test('Last-Event-ID is a sequence number; anything else means from the beginning', async (t) => {
  const { gateway } = (await serving(t, async function* () {})).listeners
  const since = async (id: string): Promise<number> =>
    (await gateway!.inject({ url: '/since', headers: { 'last-event-id': id } })).json().since
  assert.equal(await since('42'), 42)
  for (const id of ['', '-1', '1.5', 'abc', '9'.repeat(16), '1e3', ' 0x10']) assert.equal(await since(id), 0, id)
})

/** A stand-in for a response socket: counts what is written. */
const fakeStream = (heartbeatMs: number) => {
  const written: string[] = []
  let destroyed = 0
  const raw = { write: (text: string) => written.push(text), destroy: () => destroyed++ }
  const stream = {
    abort: new AbortController(),
    raw: raw as never,
    heartbeat: ': ping\n\n',
    heartbeatMs,
    lastWrite: Date.now(),
    blockedSince: undefined as number | undefined,
    done: Promise.resolve(),
  }
  return { stream, written, destroyed: () => destroyed }
}

test('a stream that was silent for 15 s gets a ping; one that wrote, or that cannot be written to, does not', (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'Date'] })
  const registry = createStreamRegistry()
  const silent = fakeStream(15_000)
  const blocked = fakeStream(15_000)
  blocked.stream.blockedSince = Date.now()
  registry.add(silent.stream)
  registry.add(blocked.stream)
  t.mock.timers.tick(14_000)
  assert.deepEqual(silent.written, [])
  t.mock.timers.tick(2_000)
  assert.deepEqual(silent.written, [': ping\n\n'])
  t.mock.timers.tick(5_000)
  assert.equal(silent.written.length, 1, 'the next one is due 15 s after the last')
  assert.deepEqual(blocked.written, [])
})

test('S5: ten thousand silent streams are pinged by one timer, never more than 20 s apart', (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'setTimeout', 'Date'] })
  const intervals = t.mock.method(globalThis, 'setInterval')
  const timeouts = t.mock.method(globalThis, 'setTimeout')
  const registry = createStreamRegistry()
  const streams = Array.from({ length: 10_000 }, () => fakeStream(15_000))
  for (const { stream } of streams) registry.add(stream)
  assert.deepEqual([intervals.mock.callCount(), timeouts.mock.callCount()], [1, 0])
  for (let pings = 1; pings <= 3; pings++) {
    for (let second = 0; second < 20; second++) t.mock.timers.tick(1_000)
    assert.ok(streams.every(({ written }) => written.length >= pings))
  }
})

test('a reader that stays unwritable for 30 s is dropped', (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'Date'] })
  const registry = createStreamRegistry()
  const stuck = fakeStream(15_000)
  stuck.stream.blockedSince = Date.now()
  registry.add(stuck.stream)
  t.mock.timers.tick(30_000)
  assert.equal(stuck.destroyed(), 0)
  t.mock.timers.tick(2_000)
  assert.ok(stuck.destroyed() > 0)
})

test('the end gives a stream 5 s for its last words, and terms as short to one that opens during it', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'setTimeout', 'Date'] })
  const registry = createStreamRegistry()
  const early = fakeStream(15_000)
  let finish = (): void => {}
  early.stream.done = new Promise<void>((resolve) => {
    finish = resolve
  })
  registry.add(early.stream)
  const ended = registry.end()
  const late = fakeStream(15_000)
  const remove = registry.add(late.stream)
  assert.equal(early.stream.abort.signal.reason, 'shutdown')
  assert.equal(late.stream.abort.signal.reason, 'shutdown')
  t.mock.timers.tick(4_999)
  assert.equal(early.destroyed() + late.destroyed(), 0)
  t.mock.timers.tick(1)
  assert.equal(early.destroyed(), 1)
  assert.equal(late.destroyed(), 1)
  finish()
  await ended
  remove()
})

test('a stream whose key is revoked has half a second for its last words; one that ends in time is not cut', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'setTimeout', 'Date'] })
  const registry = createStreamRegistry()
  const [stuck, quick, other] = [fakeStream(15_000), fakeStream(15_000), fakeStream(15_000)]
  stuck.stream.done = new Promise<void>(() => {})
  for (const { stream } of [stuck, quick, other]) registry.add(stream)
  assert.deepEqual([...registry.all()], [stuck.stream, quick.stream, other.stream])
  registry.revoke(stuck.stream)
  registry.revoke(quick.stream)
  assert.deepEqual([stuck.stream.abort.signal.reason, other.stream.abort.signal.aborted], ['revoked', false])
  await quick.stream.done
  t.mock.timers.tick(499)
  assert.equal(stuck.destroyed(), 0)
  t.mock.timers.tick(1)
  assert.deepEqual([stuck.destroyed(), quick.destroyed(), other.destroyed()], [1, 0, 0])
})

test('when the last stream is gone no timer is left', (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'Date'] })
  const registry = createStreamRegistry()
  const one = fakeStream(1_000)
  const remove = registry.add(one.stream)
  remove()
  assert.equal(registry.size, 0)
  t.mock.timers.tick(60_000)
  assert.deepEqual(one.written, [])
})

const connections = (server: { getConnections(cb: (error: Error | null, count: number) => void): unknown }) =>
  new Promise<number>((resolve) => server.getConnections((_, count) => resolve(count)))

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setImmediate(resolve))
}
