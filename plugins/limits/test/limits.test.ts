import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, connect } from 'node:net'
import { test, type TestContext } from 'node:test'
import fastify from 'fastify'
import { type App, type AppError, definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { defaultLimits, TenantLimits } from '#contracts/limits'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import limits from '../index.ts'
import { KeptLimits } from '../kept-limits.ts'

const pick = (error: unknown): unknown[] => {
  const { code, status, detail } = error as { code: string; status: number; detail: { limit: string } }
  return [code, status, detail.limit]
}

async function process(t: TestContext, address: string, config = {}) {
  const found: { limits: TenantLimits; database: Database }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { limits: TenantLimits, database: Database },
    setup: async ({ deps }) => (found.push(deps), {}),
  })
  await testKernel(t, [await databasePlugin(address), { name: 'limits', plugin: limits, config }, probe])
  return found[0]!
}

test('limits are those of the role file, but for those that an operator gave a tenant', async (t) => {
  const { limits: here } = await process(t, await freshDatabase(t), { runningRuns: 7 })
  assert.deepEqual([here.of('default').runningRuns, here.of('default').queuedRuns], [7, 2_000])
  assert.equal(await here.change('default', { runningRuns: 3, profiles: 5 }), true)
  assert.deepEqual([here.of('default').runningRuns, here.of('default').profiles], [3, 5])
  assert.deepEqual(here.ownOf('default'), { runningRuns: 3, profiles: 5 })
  assert.equal(here.of('other').runningRuns, 7)
  assert.equal(await here.change('default', { runningRuns: null }), true)
  assert.deepEqual(here.ownOf('default'), { profiles: 5 })
  assert.equal(here.of('default').runningRuns, 7)
  assert.equal(await here.change('nobody', { profiles: 1 }), false)
})

test('another process learns of a change, one that is over again included', async (t) => {
  const address = await freshDatabase(t)
  const { limits: here, database } = await process(t, address)
  await here.change('default', { profiles: 5 })
  const { limits: there } = await process(t, address)
  assert.equal(there.of('default').profiles, 5, 'at its start')
  const other = new KeptLimits(here.defaults, database, undefined, { warn: () => assert.fail() })
  await other.look()
  assert.equal(other.of('default').profiles, 5)
  await here.change('default', { profiles: null, queuedRuns: 1 })
  await other.look()
  assert.deepEqual(other.ownOf('default'), { queuedRuns: 1 })
})

test('while the database is away the limits stay as they were', async () => {
  const warned: string[] = []
  const away = { systemBatch: async () => Promise.reject(new Error('away')) } as unknown as Database
  const limits = new KeptLimits({ profiles: 9 } as never, away, undefined, {
    warn: (_: unknown, text?: string) => void warned.push(text!),
  })
  await limits.look()
  assert.equal(limits.of('any').profiles, 9)
  assert.equal(warned.length, 1)
})

test('of open streams a tenant has as many as it may, and those that were closed count no more', () => {
  const limits = new KeptLimits({ openStreams: 2 } as never, undefined, undefined, { warn() {} })
  const end = limits.begin('openStreams', 'acme') as () => void
  assert.equal(typeof limits.begin('openStreams', 'acme'), 'function')
  const refusal = limits.begin('openStreams', 'acme') as AppError
  assert.deepEqual([refusal.code, refusal.status], ['limit_reached', 429])
  assert.equal(typeof limits.begin('openStreams', 'globex'), 'function')
  end()
  assert.equal(typeof limits.begin('openStreams', 'acme'), 'function')
  end()
  assert.equal(typeof limits.begin('openStreams', 'acme'), 'object', 'ended twice is ended once')
})

test('answers that are under way are bounded by tenant, and those that were taken count no more', async (t) => {
  const limits = new KeptLimits({ openAnswers: 2 } as never, undefined, undefined, { warn() {} })
  const app = fastify()
  t.after(() => app.close())
  limits.guard(app as unknown as App, {
    tenantOf: ({ headers }) => String(headers['tenant']),
    writes: 'writesPerMinute',
  })
  app.setErrorHandler(({ status, detail }: AppError, _request, reply) => reply.code(status).send(detail))
  const gate = Promise.withResolvers<string>()
  app.get('/slow', () => gate.promise)
  app.get('/', async () => 'quick')
  const get = async (url: string, tenant: string) => await app.inject({ url, headers: { tenant } })
  const slow = [get('/slow', 'acme'), get('/slow', 'acme')]
  const refused = await get('/', 'acme')
  assert.deepEqual([refused.statusCode, refused.json().limit], [429, 'openAnswers'])
  assert.equal((await get('/', 'globex')).statusCode, 200)
  gate.resolve('at last')
  await Promise.all(slow)
  while ((await get('/', 'acme')).statusCode !== 200) await new Promise(setImmediate)
})

test('whoever leaves before the request is counted holds nothing', async (t) => {
  const limits = new KeptLimits({ openAnswers: 2 } as never, undefined, undefined, { warn() {} })
  const app = fastify()
  t.after(() => app.close())
  limits.guard(app as unknown as App, { tenantOf: () => 'acme', writes: 'writesPerMinute' })
  const [left, counted] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  app.addHook('onRequest', async (_request, { raw }) => {
    socket.destroy()
    await once(raw, 'close')
    left.resolve()
  })
  app.get('/', { preHandler: async () => counted.resolve() }, async () => 'nobody reads this')
  await app.listen({ port: 0, host: '127.0.0.1' })
  const socket = connect((app.server.address() as AddressInfo).port, '127.0.0.1')
  socket.write('GET / HTTP/1.1\r\nhost: localhost\r\n\r\n')
  await Promise.all([left.promise, counted.promise])
  assert.equal((await limits.usedBy('acme')).openAnswers, 0)
})

test('bytes of answers that nobody reads are bounded by tenant, and each may have one', async (t) => {
  const mebi = 1024 * 1024
  const limits = new KeptLimits({ openAnswers: 9, answerBytes: 20 * mebi } as never, undefined, undefined, {
    warn() {},
  })
  const app = fastify()
  t.after(() => app.close())
  limits.guard(app as unknown as App, {
    tenantOf: ({ headers }) => String(headers['tenant']),
    writes: 'writesPerMinute',
  })
  app.setErrorHandler(({ status, detail, headers, message }: AppError, _request, reply) =>
    reply
      .code(status)
      .headers(headers)
      .send({ ...detail, message }),
  )
  // More than any socket takes by itself.
  const large = Buffer.alloc(24 * mebi)
  app.get('/large', async () => large)
  app.post('/large', async () => large.toString('latin1'))
  app.get('/small', async () => 'x'.repeat(64 * 1024))
  await app.listen({ port: 0, host: '127.0.0.1' })
  const get = async (url: string, tenant: string, method: 'GET' | 'POST' = 'GET') =>
    await app.inject({ url, method, headers: { tenant } })
  const used = async (): Promise<number | undefined> => (await limits.usedBy('acme')).answerBytes
  const { port } = app.server.address() as AddressInfo
  const socket = connect(port, '127.0.0.1').pause()
  socket.write('GET /large HTTP/1.1\r\nhost: localhost\r\ntenant: acme\r\n\r\n')
  while ((await used()) === 0) await new Promise(setImmediate)
  assert.equal(await used(), 20 * mebi, 'the whole limit, though the answer is larger')
  const read = await get('/large', 'acme')
  assert.deepEqual([read.statusCode, read.json().limit, read.headers['retry-after']], [429, 'answerBytes', '1'])
  const written = await get('/large', 'acme', 'POST')
  assert.deepEqual(
    [written.statusCode, written.json().limit, written.headers['retry-after']],
    [429, 'answerBytes', undefined],
  )
  assert.match(written.json().message, /was carried out/)
  assert.equal((await get('/small', 'acme')).statusCode, 200)
  assert.equal((await get('/large', 'globex')).statusCode, 200)
  socket.destroy()
  await once(socket, 'close')
  while ((await used()) !== 0) await new Promise(setImmediate)
  assert.equal((await get('/large', 'acme')).statusCode, 200)
})

test('what is held beside other answers is counted until it is let go, and nothing counts for more than the limit', () => {
  const limits = new KeptLimits({ answerBytes: 100 } as never, undefined, undefined, { warn() {} })
  const end = limits.holdAnswer('acme', 60) as () => void
  assert.equal((limits.holdAnswer('acme', 41) as AppError).code, 'limit_reached')
  const other = limits.holdAnswer('acme', 40) as () => void
  end()
  end()
  other()
  assert.equal(typeof limits.holdAnswer('acme', 1_000), 'function')
  const none = new KeptLimits({ answerBytes: 0 } as never, undefined, undefined, { warn() {} })
  assert.equal((none.holdAnswer('acme', 1) as AppError).status, 429)
})

test('large bodies wait for as many bytes as their tenant may send, and files flow no faster', async () => {
  // The limit is twenty parts of 32 KiB a second.
  const max = 20 * 60 * 32 * 1024
  const limits = new KeptLimits({ ...defaultLimits, transferBytesPerMinute: max }, undefined, undefined, {
    warn: () => assert.fail(),
  })
  const mebi = 1024 * 1024
  await limits.turnOfBody('acme', mebi)
  // The last body would wait longer than is allowed: 15 MiB take 24 seconds.
  const bodies = Array.from({ length: 15 }, () => limits.turnOfBody('acme', mebi).catch((error: unknown) => error))
  const [refused, behind] = [bodies.at(-1), limits.turnOfBody('acme', 2 * mebi).catch((error: unknown) => error)]
  // A refusal comes when the body would have been taken, so that asking again is no faster: that of a small one is the first.
  const small = limits.turnOfBody('acme', 32 * 1024).catch((error: unknown) => error)
  const order: string[] = []
  await Promise.all([
    behind.then(() => order.push('2 MiB')),
    refused!.then(() => order.push('1 MiB')),
    small.then(() => order.push('32 KiB')),
  ])
  assert.deepEqual(order, ['32 KiB', '1 MiB', '2 MiB'])
  for (const one of [refused, behind, small])
    assert.deepEqual(pick(await one), ['limit_reached', 429, 'transferBytesPerMinute'])
  async function* file(): AsyncGenerator<Uint8Array> {
    for (let part = 0; part < 34; part++) yield new Uint8Array(32 * 1024)
  }
  const began = performance.now()
  let bytes = 0
  for await (const part of limits.paced('globex', file())) bytes += part.length
  assert.equal(bytes, 34 * 32 * 1024)
  assert.ok(performance.now() - began > 40, 'a mebibyte passes at once, and the rest takes its time')
})

test('what comes at once waits for its turn; the turns of large requests take longer, and who would wait too long is refused', async () => {
  const limits = new KeptLimits({ ...defaultLimits, writesPerMinute: 60 }, undefined, undefined, {
    warn: () => assert.fail(),
  })
  const refused = async (tenant: string, turns: number): Promise<number> => {
    const all = Array.from({ length: 5 }, () => limits.turn(tenant, 'writesPerMinute', turns))
    const settled = await Promise.allSettled(all)
    const errors = settled.flatMap((one) => (one.status === 'rejected' ? [(one.reason as { code: string }).code] : []))
    assert.ok(errors.every((code) => code === 'limit_reached'))
    return errors.length
  }
  assert.deepEqual([await refused('small', 1), await refused('large', 6)], [0, 2])
  // A patient caller is not refused, unless the limit is 0.
  const behind = limits.turn('large', 'writesPerMinute', 1, { patient: true }).then(() => 'done')
  assert.equal(await behind, 'done')
  const none = new KeptLimits({ ...defaultLimits, writesPerMinute: 0 }, undefined, undefined, { warn() {} })
  await assert.rejects(none.turn('acme', 'writesPerMinute', 1, { patient: true }), { code: 'limit_reached' })
})
