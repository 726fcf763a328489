import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type TestContext, test } from 'node:test'
import { Agent } from 'undici'
import { askJson, askPatiently, type JsonAnswer, type JsonRequest, NoAnswer } from '#kit'

async function peer(t: TestContext, listener: RequestListener) {
  const server = createServer(listener)
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const agent = new Agent()
  t.after(async () => {
    await agent.destroy()
    server.closeAllConnections()
    server.close()
  })
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const ask = (fields: Partial<JsonRequest> = {}): Promise<JsonAnswer> =>
    askJson(agent, { method: 'GET', origin, path: '/', timeoutMs: 5_000, ...fields })
  return { ask, agent, origin }
}
const asked = (value: boolean) => (error: unknown) => error instanceof NoAnswer && error.asked === value

test('JSON goes there and comes back; what is no JSON is an answer without a body', async (t) => {
  const { ask } = await peer(t, (request, response) => {
    void request.toArray().then((parts: Buffer[]) => {
      if (request.method === 'DELETE') return response.writeHead(204).end()
      if (request.method === 'GET') return response.writeHead(502).end('<html>')
      const headers = [request.headers['content-type'], request.headers.accept]
      response.writeHead(201).end(JSON.stringify([headers, JSON.parse(Buffer.concat(parts).toString())]))
    })
  })
  const posted = await ask({ method: 'POST', body: { a: [1] } })
  assert.equal(posted.status, 201)
  assert.deepEqual(posted.body, [['application/json', 'application/json'], { a: [1] }])
  const patched = await ask({ method: 'PATCH', body: {}, headers: { 'content-type': 'application/merge-patch+json' } })
  assert.deepEqual(patched.body, [['application/merge-patch+json', 'application/json'], {}])
  for (const [method, status] of [
    ['DELETE', 204],
    ['GET', 502],
  ] as const) {
    const { status: given, body } = await ask({ method })
    assert.deepEqual([given, body], [status, undefined])
  }
})

test('who gets no answer knows whether the server can have done it', async (t) => {
  const { ask } = await peer(t, ({ url, socket }, response) => {
    if (url === '/cut') socket.destroy()
    else if (url === '/torn') response.writeHead(200, { 'content-length': '100' }).write('{')
    if (url === '/torn') setImmediate(() => socket.destroy())
  })
  await assert.rejects(ask({ path: '/cut' }), asked(true))
  await assert.rejects(ask({ path: '/torn' }), asked(true))
  await assert.rejects(ask({ path: '/silent', timeoutMs: 50 }), asked(true))
  await assert.rejects(ask({ origin: 'http://127.0.0.1:1' }), asked(false))
  const reason = new Error('enough')
  const abort = new AbortController()
  const waiting = assert.rejects(ask({ path: '/silent', signal: abort.signal }), reason)
  abort.abort(reason)
  await waiting
})

test('what may pass is asked again, and only what may be repeated', async (t) => {
  const outcomes = async (statuses: number[], repeatable: boolean, method: 'GET' | 'POST' = 'GET') => {
    const left = [...statuses]
    const { ask } = await peer(t, (request, response) => {
      const status = left.shift()!
      if (status === 0) request.socket.destroy()
      else response.writeHead(status, { 'retry-after': '0' }).end('{}')
    })
    const answer = await askPatiently(() => ask({ method }), { repeatable, withinMs: 5_000 }).catch(
      (error: unknown) => error,
    )
    return [answer instanceof NoAnswer ? 'none' : (answer as JsonAnswer).status, statuses.length - left.length]
  }
  assert.deepEqual(await outcomes([503, 0, 429, 200], true), [200, 4])
  assert.deepEqual(await outcomes([429, 201], false, 'POST'), [201, 2])
  assert.deepEqual(await outcomes([503, 201], false, 'POST'), [503, 1])
  assert.deepEqual(await outcomes([0, 201], false, 'POST'), ['none', 1])
  assert.deepEqual(await outcomes([404, 200], true), [404, 1])
})

test('patience ends: with its time, with a wait that is longer, and with its signal', async (t) => {
  let count = 0
  const { ask } = await peer(t, ({ url }, response) => {
    count++
    response.writeHead(503, url === '/later' ? { 'retry-after': '3600' } : {}).end()
  })
  const patience = { repeatable: true, withinMs: 1_500 }
  assert.equal((await askPatiently(() => ask(), patience)).status, 503)
  assert.ok(count >= 2)
  count = 0
  assert.equal((await askPatiently(() => ask({ path: '/later' }), { ...patience, withinMs: 60_000 })).status, 503)
  assert.equal(count, 1)
  const abort = new AbortController()
  const waiting = askPatiently(() => ask(), { repeatable: true, withinMs: 60_000, signal: abort.signal })
  const stopped = assert.rejects(waiting, { name: 'AbortError' })
  abort.abort()
  await stopped
})

test('a request of one who is closed is over at once', async (t) => {
  const { ask, agent } = await peer(t, (_request, response) => response.end())
  await agent.destroy()
  await assert.rejects(
    askPatiently(() => ask(), { repeatable: true, withinMs: 60_000 }),
    { code: 'UND_ERR_DESTROYED' },
  )
})
