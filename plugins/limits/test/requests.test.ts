import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import fastify from 'fastify'
import type { App, AppError } from '#kernel'
import { Kv } from '#contracts/kv'
import { defaultLimits, type Limits } from '#contracts/limits'
import { HitWindows, Spent } from '#kit'
import { KeptLimits } from '../kept-limits.ts'

/** A scope whose requests are counted in a store that counts how often it is asked. */
function scope(t: TestContext, own: Partial<Limits>) {
  const asked: string[] = []
  const windows = new HitWindows()
  const kv: Pick<Kv, 'hit'> = { hit: (key, ...of) => (asked.push(key), windows.hit(key, ...of)) }
  const kept = new KeptLimits({ ...defaultLimits, ...own }, undefined, kv, { warn: () => assert.fail() })
  const app = fastify()
  t.after(() => app.close())
  kept.guard(app as unknown as App, { tenantOf: ({ headers }) => String(headers['tenant']), writes: 'writesPerMinute' })
  app.setErrorHandler(({ status, detail, headers }: AppError, _request, reply) =>
    reply
      .code(status)
      .headers(headers ?? {})
      .send(detail),
  )
  app.get('/', async () => 'read')
  app.post('/', async () => 'written')
  const send = (tenant: string, method: 'GET' | 'POST' = 'GET') => app.inject({ url: '/', method, headers: { tenant } })
  return { app, kept, asked, send }
}

test('once a limit of a minute is used up, what is refused asks nobody, and says the same', async (t) => {
  const { kept, asked, send } = scope(t, { readsPerMinute: 3 })
  for (let n = 0; n < 3; n++) assert.equal((await send('acme')).statusCode, 200)
  assert.equal(kept.isSpent('acme', 'GET', 'writesPerMinute'), false, 'nobody was refused yet')
  const first = await send('acme')
  const before = asked.length
  const next = await send('acme')
  assert.equal(asked.length, before)
  for (const { statusCode, headers, json } of [first, next]) {
    assert.deepEqual([statusCode, json().limit], [429, 'readsPerMinute'])
    assert.equal(headers['ratelimit'], `"tenant";r=0;t=${headers['retry-after']}`)
    assert.ok(Number(headers['retry-after']) > 0)
  }
  assert.equal(kept.isSpent('acme', 'GET', 'writesPerMinute'), true)
  assert.equal(kept.isSpent('acme', 'POST', 'writesPerMinute'), false)
  assert.equal((await send('acme', 'POST')).statusCode, 200, 'another limit')
  assert.equal((await send('globex')).statusCode, 200, 'another tenant')
})

test('a limit without turns is spent from the beginning, and one whose turns are all taken until some are free', async () => {
  const none = new KeptLimits({ ...defaultLimits, readsPerMinute: 0 }, undefined, undefined, { warn() {} })
  assert.equal(none.isSpent('acme', 'GET', 'writesPerMinute'), true)
  const kept = new KeptLimits({ ...defaultLimits, readsPerMinute: 60 }, undefined, undefined, { warn() {} })
  // Three turns a second, of which six pass at once and as many wait as come within two seconds.
  await kept.turn('acme', 'readsPerMinute', 60)
  assert.equal(kept.isSpent('acme', 'GET', 'writesPerMinute'), true)
  assert.equal(kept.isSpent('globex', 'GET', 'writesPerMinute'), false)
})

test('hundreds that are refused at once are all held up: none of them asks anew right away', async () => {
  const kept = new KeptLimits({ ...defaultLimits }, undefined, undefined, { warn() {} })
  let answered = 0
  // The first ones wait for milliseconds; these are about the rest, each of which waits for a second.
  for (let n = 0; n < 600; n++) void kept.holdUp('acme').then(() => void (answered += n < 200 ? 0 : 1))
  await new Promise(setImmediate)
  assert.equal(answered, 0)
})

test('who is refused at the same time is not answered at the same time', async (t) => {
  const kept = new KeptLimits({ ...defaultLimits }, undefined, undefined, { warn() {} })
  for (let n = 0; n < 20; n++) void kept.holdUp('acme')
  const ended: string[] = []
  const hold = (name: string, random: number): Promise<void> => {
    t.mock.method(Math, 'random', () => random)
    return kept.holdUp('acme').then(() => void ended.push(name))
  }
  await Promise.all([hold('first', 0.99), hold('second', 0)])
  assert.deepEqual(ended, ['second', 'first'])
})

test('answers as large as lists are take the turns of the reads behind them, of their tenant and of nobody else', async (t) => {
  const { app, kept } = scope(t, { readsPerMinute: 40 })
  const large = 'x'.repeat(1024 * 1024)
  let made = 0
  app.get('/large', async () => (made++, large))
  app.get('/streamed', async (_request, reply) => {
    made++
    reply.hijack()
    reply.raw.end(large)
  })
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  const read = async (tenant: string, path: string): Promise<number> => {
    const answer = await fetch(`${url}${path}`, { headers: { tenant } })
    await answer.arrayBuffer()
    return answer.status
  }
  for (const path of ['/large', '/streamed']) {
    const tenant = `tenant of ${path}`
    made = 0
    assert.equal(await read(tenant, path), 200)
    // The answer may have been read a moment before it is counted.
    while (!kept.isSpent(tenant, 'GET', 'writesPerMinute')) await new Promise(setImmediate)
    assert.deepEqual([await read(tenant, path), made], [429, 1])
    assert.equal(kept.isSpent(tenant, 'POST', 'writesPerMinute'), false)
    assert.equal(await read('another', '/'), 200)
  }
  for (let n = 0; n < 6; n++) assert.equal(await read('small', '/'), 200)
  assert.equal(kept.isSpent('small', 'GET', 'writesPerMinute'), false)
})

test('parts of long lists take the turns of reads, and those of others do not wait for them', async (t) => {
  const { app } = scope(t, { readsPerMinute: 5 })
  const symbol = Object.getOwnPropertySymbols(app).find(({ description }) => description === 'agent-orc.turn-of-part')
  const turn = app.getDecorator<(request: object, chars: number) => Promise<void>>(symbol!)
  let passed = 0
  const parts = async (): Promise<void> => {
    for (; ; passed++) await turn({ headers: { tenant: 'acme' } }, 1_000)
  }
  void parts()
  // One every two seconds, after ten at once.
  for (let n = 0; n < 10; n++) await turn({ headers: { tenant: 'globex' } }, 1_000)
  await new Promise(setImmediate)
  assert.ok(passed >= 10 && passed < 20, `${passed} parts`)
})

test('a body that does not say its length takes the turns of the largest that its route takes', async (t) => {
  const { app, kept } = scope(t, {})
  const taken: number[] = []
  t.mock.method(kept, 'turnOfBody', async (_tenantId: string, bytes: number) => void taken.push(bytes))
  app.post('/large', { bodyLimit: 8 * 1024 * 1024 }, async () => 'written')
  app.post('/small', { bodyLimit: 100_000 }, async () => 'written')
  const headers = { tenant: 'acme', 'transfer-encoding': 'chunked', 'content-type': 'application/json' }
  for (const url of ['/large', '/small', '/'])
    assert.equal((await app.inject({ method: 'POST', url, headers, payload: '{}' })).statusCode, 200)
  assert.deepEqual(taken, [8 * 1024 * 1024, 100_000, 1024 * 1024])
})

test('what is used up is so until its time, and for the same limit', () => {
  let now = 0
  const spent = new Spent(() => now)
  spent.found('a', 10, 5_000)
  assert.deepEqual([spent.leftOf('a', 10), spent.leftOf('a', 11), spent.leftOf('b', 10)], [5_000, 0, 0])
  now = 4_999
  assert.equal(spent.leftOf('a', 10), 1)
  now = 5_000
  assert.equal(spent.leftOf('a', 10), 0)
})
