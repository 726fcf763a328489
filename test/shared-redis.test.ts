import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { access, definePlugin, type Plugin } from '#kernel'
import { InternalGuard } from '#contracts/auth'
import { Kv } from '#contracts/kv'
import { Signers } from '#contracts/signing'
import { redisForTests, startProxy, testKernel } from '#testing'
import { gateway, publish, type TestKv } from '../plugins/chat/test/gateway.ts'
import internalGuard from '../plugins/internal-guard/index.ts'
import kvPlugin from '../plugins/kv/index.ts'
import signing from '../plugins/signing/index.ts'

/** A connection of its own to the Redis at `url`, as each process has one. */
async function kvAt(t: TestContext, url: string): Promise<Kv> {
  let kv: Kv | undefined
  const peek = definePlugin({
    name: 'peek',
    requires: { kv: Kv },
    setup: async ({ deps }) => {
      kv = deps.kv
      return {}
    },
  })
  await testKernel(t, [{ name: 'kv', plugin: kvPlugin, config: { url } }, peek], { listeners: [] })
  return kv!
}

test('O1: two gateways on one Redis admit exactly the rate together, and without it each on its own', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const redis = await startProxy(t, url)
  const a = await gateway(t, { kv: (await kvAt(t, redis.url)) as TestKv })
  const b = await gateway(t, { kv: (await kvAt(t, redis.url)) as TestKv, dsn: a.dsn, dispatch: a.dispatch })
  const agent = await publish(a.database, { rpm: 20 })
  const admitted = async (): Promise<number[]> => {
    const replies = await Promise.all(
      Array.from({ length: 80 }, (_, i) =>
        (i % 2 === 0 ? a : b).app.inject({
          method: 'POST',
          url: agent.url,
          headers: agent.auth,
          payload: { message: 'Hi' },
        }),
      ),
    )
    const codes = replies.map((reply) => reply.statusCode)
    assert.ok(codes.every((code) => code === 200 || code === 429))
    return [0, 1].map((n) => codes.filter((code, i) => code === 200 && i % 2 === n).length)
  }
  const [one, two] = await admitted()
  assert.equal(one! + two!, 20)
  assert.doesNotMatch(await a.metrics(), /^chat_gateway_rate_limit_fallback_total [1-9]/m)
  redis.cut()
  assert.deepEqual(await admitted(), [20, 20])
  for (const g of [a, b]) assert.match(await g.metrics(), /^chat_gateway_rate_limit_fallback_total 40$/m)
})

test('A5: a signed request is accepted by one of two conductors that share Redis, and by none while it is away', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const redis = await startProxy(t, url)
  const current = randomBytes(32).toString('base64')
  let sign: (target: string) => Record<string, string> = () => ({})
  const guarded: Plugin = definePlugin({
    name: 'guarded',
    requires: { guard: InternalGuard, signers: Signers },
    async setup({ deps: { guard, signers }, routes }) {
      sign = (target) =>
        signers.get('chat-gateway')!.sign({ tenant: 'acme', method: 'GET', target, body: new Uint8Array() })
      routes('internal', async (app) => {
        guard.protect(app)
        app.get('/api/x', access('service'), async (request) => guard.callerOf(request))
      })
      return {}
    },
  })
  const plugins = [
    { name: 'kv', plugin: kvPlugin, config: { url: redis.url } },
    { name: 'signing', plugin: signing, config: { family: 'chat-gateway', current } },
    internalGuard,
    guarded,
  ]
  const conductors = [
    await testKernel(t, plugins, { listeners: ['internal'] }),
    await testKernel(t, plugins, { listeners: ['internal'] }),
  ]
  const ask = async (n: number, headers: Record<string, string>): Promise<number> =>
    (await conductors[n]!.listeners['internal']!.inject({ url: '/api/x', headers })).statusCode
  const headers = sign('/api/x')
  assert.deepEqual([await ask(0, headers), await ask(1, headers), await ask(0, headers)], [200, 401, 401])
  const race = sign('/api/x')
  const codes = await Promise.all(Array.from({ length: 20 }, (_, i) => ask(i % 2, race)))
  assert.equal(codes.filter((code) => code === 200).length, 1)
  redis.cut()
  const during = sign('/api/x')
  assert.deepEqual([await ask(0, during), await ask(1, during), await ask(1, headers)], [503, 503, 503])
})
