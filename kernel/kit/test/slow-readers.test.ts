import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import Fastify from 'fastify'
import { SlowReaders, slowReaders } from '../slow-readers.ts'

const patience = { ms: 1_000, bytesPerMs: 16, lookEveryMs: 500 }

/** A connection to which so much was written, of which so much still waits for its client. */
function connection(bytesWritten: number, writableLength: number) {
  const one = {
    bytesWritten,
    writableLength,
    destroyed: false,
    destroy: () => Object.assign(one, { destroyed: true }) as never,
  }
  return one
}

test('a client that takes nothing for longer than it may loses its connection, and one that takes a little does not', () => {
  const deaf = connection(50_000, 16)
  const slow = connection(50_000, 16)
  const idle = connection(50_000, 0)
  const readers = new SlowReaders([deaf, slow, idle], patience)
  for (let now = 0; now <= 1_000; now += 500) {
    readers.look(now)
    slow.bytesWritten += 1
  }
  assert.deepEqual([deaf.destroyed, slow.destroyed, idle.destroyed], [false, false, false])
  readers.look(1_002)
  assert.deepEqual([deaf.destroyed, slow.destroyed, idle.destroyed], [true, false, false])
})

test('a large piece has the time that a slow client needs for it', () => {
  const one = connection(16_000, 16_000)
  const readers = new SlowReaders([one], patience)
  for (let now = 0; now <= 2_000; now += 500) readers.look(now)
  assert.equal(one.destroyed, false)
  readers.look(2_001)
  assert.equal(one.destroyed, true)
})

test('time in which the process stood still is not counted', () => {
  const one = connection(16_000, 16)
  const readers = new SlowReaders([one], patience)
  for (const now of [0, 60_000]) readers.look(now)
  assert.equal(one.destroyed, false)
})

test('a server ends an answer that flows and is not read', async (t) => {
  const app = Fastify()
  const connections = new Set<Socket>()
  app.server.on('connection', (socket) => connections.add(socket))
  await app.register(slowReaders, { connections, patience: { ms: 50, bytesPerMs: 10_000, lookEveryMs: 20 } })
  const piece = Buffer.alloc(4 * 1024, 'x')
  app.get('/', (_request, reply) => reply.send(Readable.from(Array.from({ length: 8_192 }, () => piece))))
  await app.listen({ port: 0, host: '127.0.0.1' })
  t.after(() => app.close())
  const asked = once(app.server, 'request') as Promise<[unknown, ServerResponse]>
  const socket = connect((app.server.address() as AddressInfo).port, '127.0.0.1').on('error', () => {})
  socket.pause().write('GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n')
  const [, response] = await asked
  await once(response, 'close')
  assert.equal(response.writableFinished, false)
})
