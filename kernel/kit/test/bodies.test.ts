import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type IncomingMessage, request as httpRequest } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import Fastify from 'fastify'
import { access } from '#kernel'
import { jsonBodies } from '../../http/requests.ts'
import { giveBack } from '../bodies.ts'
import { createCompilers } from '../compilers.ts'

const mebibyte = 1024 * 1024

test('a large buffer is given back whole; one that shares its memory, and a small one, are left alone', () => {
  const whole = Buffer.alloc(mebibyte, 'x')
  giveBack(whole)
  assert.equal(whole.length, 0)
  const shared = Buffer.alloc(mebibyte, 'x')
  giveBack(shared.subarray(1))
  giveBack(shared.subarray(0, mebibyte - 1))
  assert.equal(shared.length, mebibyte)
  const small = Buffer.alloc(1024, 'x')
  giveBack(small)
  assert.equal(small.length, 1024)
})

async function echo(t: TestContext) {
  const app = Fastify({ bodyLimit: 32 * mebibyte })
  await app.register(jsonBodies, createCompilers())
  const seen: number[] = []
  app.post('/', { ...access('public') }, async ({ body }) => {
    seen.push(process.memoryUsage().arrayBuffers)
    const { text } = body as { text: string }
    return { length: text.length, ends: text.slice(-3) }
  })
  t.after(() => app.close())
  return { app, seen }
}
const bodyWith = (text: string): Buffer => Buffer.from(JSON.stringify({ text }))

/** Sends parts one after the other; the body's length is said only where all of it is one part. */
async function post(port: number, ...parts: Buffer[]): Promise<unknown> {
  const headers = {
    'content-type': 'application/json',
    ...(parts.length === 1 ? { 'content-length': parts[0]!.length } : {}),
  }
  const request = httpRequest({ host: '127.0.0.1', port, method: 'POST', headers })
  for (const part of parts) if (!request.write(part)) await once(request, 'drain')
  request.end()
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  return json(response)
}

test('of a body that was read from a connection no buffer is left when its handler runs', async (t) => {
  const { app, seen } = await echo(t)
  await app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = app.server.address() as AddressInfo
  const bytes = 16 * mebibyte
  const body = bodyWith(`${'x'.repeat(bytes)}end`)
  const before = process.memoryUsage().arrayBuffers
  assert.deepEqual(await post(port, body), { length: bytes + 3, ends: 'end' })
  assert.ok(seen[0]! - before < bytes / 2, `${seen[0]! - before} bytes more`)
  // Of many smaller ones as well, which say their length, too.
  const smaller = bodyWith('x'.repeat(200_000))
  for (let n = 0; n < 20; n++) await post(port, smaller)
  assert.ok(seen.at(-1)! - before < bytes / 8, `${seen.at(-1)! - before} bytes more`)
  // The room of a body that does not say its length grows while it comes.
  const halves = [body.subarray(0, bytes / 2), body.subarray(bytes / 2)]
  assert.deepEqual(await post(port, ...halves), { length: bytes + 3, ends: 'end' })
})

test("what is injected stays its owner's", async (t) => {
  const { app } = await echo(t)
  const payload = bodyWith('x'.repeat(mebibyte))
  for (let n = 0; n < 2; n++) {
    const answer = await app.inject({
      method: 'POST',
      url: '/',
      headers: { 'content-type': 'application/json' },
      payload,
    })
    assert.deepEqual(answer.json(), { length: mebibyte, ends: 'xxx' })
  }
})
