import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { access, definePlugin, type Plugin } from '#kernel'
import { InternalGuard, Tokens } from '#contracts/auth'
import { Kv } from '#contracts/kv'
import { Signers } from '#contracts/signing'
import {
  databasePlugin,
  fake,
  freshDatabase,
  redisForTests,
  startProxy,
  testKernel,
  type TestKernel,
  until,
} from '#testing'
import auth from '../plugins/auth/index.ts'
import signing from '../plugins/auth/signing/index.ts'
import { gateway, publish, type TestKv } from '../plugins/chat/test/gateway.ts'
import kvPlugin from '../plugins/kv/index.ts'

/** Connections of its own to Redis and PostgreSQL, as each process has them. */
async function kvAt(t: TestContext, url: string, dsn: string): Promise<Kv> {
  let kv: Kv | undefined
  const peek = definePlugin({
    name: 'peek',
    requires: { kv: Kv },
    setup: async ({ deps }) => {
      kv = deps.kv
      return {}
    },
  })
  const plugins = [await databasePlugin(dsn), { name: 'kv', plugin: kvPlugin, config: { url } }, peek]
  await testKernel(t, plugins, { listeners: [] })
  return kv!
}

test('O1: two gateways admit exactly the rate together, on Redis and, while it is away, on PostgreSQL', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const redis = await startProxy(t, url)
  const dsn = await freshDatabase(t)
  const a = await gateway(t, { kv: (await kvAt(t, redis.url, dsn)) as TestKv, dsn })
  const b = await gateway(t, { kv: (await kvAt(t, redis.url, dsn)) as TestKv, dsn, dispatch: a.dispatch })
  const agent = await publish(a.database, { rpm: 20 })
  const admitted = async (): Promise<number> => {
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
    return codes.filter((code) => code === 200).length
  }
  assert.equal(await admitted(), 20)
  redis.cut()
  assert.equal(await admitted(), 20)
  assert.equal(await admitted(), 0)
})

test('A5: a signed request is accepted once by two conductors together, before, while and after Redis is away', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const redis = await startProxy(t, url)
  const database = await databasePlugin(await freshDatabase(t))
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
    database,
    { name: 'kv', plugin: kvPlugin, config: { url: redis.url } },
    { name: 'signing', plugin: signing, config: { family: 'chat-gateway', current } },
    fake(Tokens, {} as Tokens),
    auth,
    guarded,
  ]
  const conductors = [
    await testKernel(t, plugins, { listeners: ['conductor', 'internal'] }),
    await testKernel(t, plugins, { listeners: ['conductor', 'internal'] }),
  ]
  const ask = async (n: number, headers: Record<string, string>): Promise<number> =>
    (await conductors[n]!.listeners['internal']!.inject({ url: '/api/x', headers })).statusCode
  const used: Record<string, string>[] = []
  const acceptedOnce = async (): Promise<void> => {
    const headers = sign('/api/x')
    const codes = await Promise.all(Array.from({ length: 20 }, (_, i) => ask(i % 2, headers)))
    assert.deepEqual(codes.toSorted(), [200, ...Array.from({ length: 19 }, () => 401)])
    used.push(headers)
    for (const old of used) for (const n of [0, 1]) assert.equal(await ask(n, old), 401)
  }
  await acceptedOnce()
  redis.cut()
  await acceptedOnce()
  redis.heal()
  redis.hang()
  await acceptedOnce()
  redis.heal()
  const last = ({ logs }: TestKernel) => logs.findLast(({ plugin }) => plugin === 'kv')?.['msg']
  await until(
    async () => conductors.every((conductor) => last(conductor) === 'Redis answers again and is used'),
    'Redis is used again',
  )
  await acceptedOnce()
})
