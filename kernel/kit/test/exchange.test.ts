import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { type TestContext, test } from 'node:test'
import { type Dispatcher, Pool } from 'undici'
import { exchange, readBody, readJson, type Reply } from '#kit'

class Lost extends Error {
  readonly answered: boolean
  constructor(cause: Error, answered: boolean) {
    super('lost', { cause })
    this.answered = answered
  }
}

/** A server that answers with `listener`, what asks it, and the connections it was given. */
async function peer(t: TestContext, listener: RequestListener) {
  const sockets = new Set<Socket>()
  const server = createServer(listener).on('connection', (socket) => sockets.add(socket))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  // One connection at a time: a second one proves that the first was closed.
  const pool = new Pool(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, { connections: 1 })
  t.after(async () => {
    await pool.destroy()
    server.closeAllConnections()
    server.close()
  })
  const ask = (signal = new AbortController().signal): Promise<Reply> =>
    exchange(pool, { path: '/', method: 'GET' }, { signal, lost: (cause, answered) => new Lost(cause, answered) })
  return { ask, server, sockets }
}

test('an answer that is read to its end leaves its connection to the next request', async (t) => {
  const { ask, sockets } = await peer(t, (_request, response) => response.end('{"a":1}'))
  for (let i = 0; i < 3; i++) assert.deepEqual(await readJson(await ask(), 100), { a: 1 })
  assert.equal(sockets.size, 1)
})

test('a body longer than its limit is undefined, and so is JSON that is no object', async (t) => {
  const { ask } = await peer(t, (_request, response) => response.end('"seven"'))
  assert.equal(await readBody((await ask()).body, 6), undefined)
  assert.equal((await readBody((await ask()).body, 7))?.toString(), '"seven"')
  assert.equal(await readJson(await ask(), 7), undefined)
})

test('a reader that leaves early closes the connection', async (t) => {
  const { ask, sockets } = await peer(t, (_request, response) => response.write('first'))
  const { body } = await ask()
  for await (const chunk of body) {
    assert.equal(chunk.toString(), 'first')
    break
  }
  const [socket] = sockets
  if (!socket!.destroyed) await once(socket!, 'close')
})

test('a reader that leaves when only the end is to come keeps the connection', async (t) => {
  let finish = (): void => undefined
  const { ask, sockets } = await peer(t, (_request, response) => {
    response.write('last')
    finish = () => response.end()
  })
  for (let i = 0; i < 2; i++) {
    const reply = await ask()
    for await (const _ of reply.body) {
      reply.expectEnd()
      break
    }
    finish()
  }
  assert.equal(sockets.size, 1)
})

test('what is unread stops the socket at 256 KiB, and reading starts it again', async () => {
  let handler: Dispatcher.DispatchHandler = {}
  const calls: string[] = []
  const controller = {
    paused: false,
    pause: () => void (calls.push('pause'), (controller.paused = true)),
    resume: () => void (calls.push('resume'), (controller.paused = false)),
  } as Dispatcher.DispatchController & { paused: boolean }
  const dispatcher = { dispatch: (_: unknown, given: Dispatcher.DispatchHandler) => ((handler = given), true) }
  const reply = exchange(
    dispatcher as Dispatcher,
    { path: '/', method: 'GET' },
    { signal: new AbortController().signal, lost: (cause) => cause },
  )
  handler.onRequestStart?.(controller, {})
  handler.onResponseStart?.(controller, 200, {})
  const reader = (await reply).body[Symbol.asyncIterator]()
  handler.onResponseData?.(controller, Buffer.alloc(256 * 1024))
  assert.deepEqual(calls, [])
  handler.onResponseData?.(controller, Buffer.alloc(1))
  assert.deepEqual(calls, ['pause'])
  assert.equal((await reader.next()).value?.length, 256 * 1024 + 1)
  assert.deepEqual(calls, ['pause', 'resume'])
})

test('no answer, and an answer that breaks off, are the error of the caller', async (t) => {
  const broken = await peer(t, (request) => request.socket.destroy())
  await assert.rejects(broken.ask(), (error) => error instanceof Lost && !error.answered)
  const cut = await peer(t, (request, response) => {
    response.write('half')
    setImmediate(() => request.socket.destroy())
  })
  await assert.rejects(
    cut.ask().then((reply) => readBody(reply.body, 100)),
    (error) => error instanceof Lost,
  )
})

test('an abort ends the wait for the answer and the reading of it, and closes the connection', async (t) => {
  const silent = await peer(t, () => undefined)
  const first = new AbortController()
  const waiting = silent.ask(first.signal)
  await once(silent.server, 'request')
  const reason = new Error('enough')
  first.abort(reason)
  await assert.rejects(waiting, reason)
  await assert.rejects(silent.ask(AbortSignal.abort(reason)), reason)

  const open = await peer(t, (_request, response) => response.write('half'))
  const second = new AbortController()
  const { body } = await open.ask(second.signal)
  const reader = body[Symbol.asyncIterator]()
  await reader.next()
  const next = reader.next()
  second.abort(reason)
  await assert.rejects(next, reason)
  const [socket] = open.sockets
  if (!socket!.destroyed) await once(socket!, 'close')
})
