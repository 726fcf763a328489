import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { access, definePlugin, ndjson, type Plugin } from '#kernel'
import { InternalGuard, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { type Hit, Kv } from '#contracts/kv'
import { createEventEncoder } from '#contracts/run-event'
import { SignedTask } from '#contracts/wire/conductor'
import { databasePlugin, fake, freshDatabase, idempotencyPlugin, testKernel, type TestKernel } from '#testing'
import auth from '../plugins/auth/index.ts'
import signing from '../plugins/auth/signing/index.ts'
import tokensPlugin from '../plugins/auth/tokens/index.ts'
import chat from '../plugins/chat/index.ts'
import conductorClient from '../plugins/conductor-client/index.ts'
import { frontDoor } from './front-door.ts'

interface Keys {
  readonly current: string
  readonly previous?: string
}

/** Nonces as conductors share them in Redis. */
function sharedNonces(): Kv {
  const claimed = new Set<string>()
  return {
    backend: 'redis',
    claim: async (key) => !claimed.has(key) && (claimed.add(key), true),
    hit: async (): Promise<Hit> => ({ allowed: true, count: 1, retryAfterMs: 0 }),
    publish() {},
    subscribe: () => () => {},
  }
}

/** What a gateway needs of a conductor: signed requests are verified, and every run says one word. */
const answering: Plugin = definePlugin({
  name: 'answering',
  requires: { guard: InternalGuard },
  async setup({ deps: { guard }, routes }) {
    routes('internal', async (app) => {
      guard.protect(app)
      app.post('/api/runs', { ...access('service'), schema: { body: SignedTask } }, async (request, reply) => {
        const { id = '', sessionId = 'sess-0a1b2c3d-00000001' } = request.body
        const encoder = createEventEncoder(id, sessionId, 1)
        const lines = encoder.line({ type: 'result', text: guard.callerOf(request).tenantId, finishReason: 'stop' })
        const headers = { 'x-run-id': id, 'x-session-id': sessionId }
        await ndjson(
          request,
          reply,
          async function* () {
            yield lines
          },
          { status: 202, headers },
        )
        return reply
      })
    })
    return {}
  },
})

const signingEntry = (keys: Keys) => ({ name: 'signing', plugin: signing, config: { family: 'chat-gateway', ...keys } })
const orders = [
  ['conductor', 'a', 'b'],
  ['conductor', 'b', 'a'],
  ['a', 'conductor', 'b'],
  ['b', 'conductor', 'a'],
  ['a', 'b', 'conductor'],
  ['b', 'a', 'conductor'],
] as const

test('A5: signing keys rotate without one failed chat, in whatever order conductor and gateways are restarted', async (t) => {
  const dsn = await freshDatabase(t)
  const nonces = sharedNonces()
  const door = await frontDoor(t)
  const pepper = randomBytes(32).toString('base64')
  const parts: { database: Database; tokens: Tokens }[] = []
  const peek = definePlugin({
    name: 'peek',
    requires: { database: Database, tokens: Tokens },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  // Stopped by the test itself: a restarted one must not keep its connections until the end.
  const hooks = { after: () => {} }
  const running = new Map<string, TestKernel>()
  t.after(() => Promise.all([...running.values()].map((kernel) => kernel.stop())))
  const start = async (name: string, keys: Keys): Promise<void> => {
    const shared = [fake(Kv, nonces), signingEntry(keys)]
    const before = running.get(name)
    if (name === 'conductor') {
      const kernel = await testKernel(hooks, [...shared, fake(Tokens, {} as Tokens), auth, answering], {
        listeners: ['internal'],
        listen: true,
      })
      running.set(name, kernel)
      door.target = kernel.urls['internal']!
    } else {
      // Out of the balancer's list before it stops.
      running.delete(name)
      const plugins = [
        ...shared,
        await databasePlugin(dsn),
        { name: 'tokens', plugin: tokensPlugin, config: { pepper } },
        { name: 'conductor-client', plugin: conductorClient, config: { url: door.url } },
        await idempotencyPlugin(),
        { name: 'chat', plugin: chat, config: {} },
        peek,
      ]
      running.set(name, await testKernel(hooks, plugins, { listeners: ['gateway'], listen: true }))
    }
    await before?.stop()
  }

  let keys: Keys = { current: randomBytes(32).toString('base64') }
  for (const name of orders[0]) await start(name, keys)
  const { database, tokens } = parts[0]!
  const key = tokens.mint()
  await database.batch('acme', [
    { text: `INSERT INTO profiles (tenant_id, name, id, document) VALUES ('acme', 'p', 'p', '{}')` },
    {
      text: `INSERT INTO published_agents (tenant_id, id, profile_name, slug, allowed_origins, rate_limit_rpm,
               sync_max_duration_seconds, expose_tool_events) VALUES ('acme', 'pub_1', 'p', 'p', '{}', 100000, 30, false)`,
    },
    {
      text: `INSERT INTO published_agent_keys (tenant_id, id, published_id, label, key_hash)
             VALUES ('acme', 'key_1', 'pub_1', '', $1::bytea)`,
      values: [tokens.hash('ao:pub-key:v1', key)],
    },
  ])

  const ask = async (url: string): Promise<{ status: number; body: string }> => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
    const reply = await fetch(url, { method: 'POST', headers, body: JSON.stringify({ message: 'Hi' }) })
    return { status: reply.status, body: await reply.text() }
  }
  let over = false
  let answered = 0
  const failures: string[] = []
  const talk = async (n: number): Promise<void> => {
    for (let i = n; !over; i++) {
      const gateways = [...running].filter(([name]) => name !== 'conductor')
      const url = `${gateways[i % gateways.length]![1].urls['gateway']}/v1/chat/acme/p`
      const { status, body } = await ask(url)
      answered++
      if (status !== 200 || !body.includes('"message":"acme"')) failures.push(`${status} ${body}`)
    }
  }
  const talking = Promise.all([talk(0), talk(1), talk(2)])
  /** Waits until every gateway has sent requests since the last restart. */
  const aWhile = async (): Promise<void> => {
    for (const enough = answered + 10; answered < enough && failures.length === 0;)
      await new Promise((resolve) => setTimeout(resolve, 5))
  }
  for (const [round, order] of orders.entries()) {
    const next = randomBytes(32).toString('base64')
    const steps: [readonly string[], Keys][] = [
      [order, { current: next, previous: keys.current }],
      [orders[(round + 2) % orders.length]!, { current: next }],
    ]
    for (const [names, set] of steps) {
      for (const name of names) {
        await start(name, set)
        await aWhile()
        assert.deepEqual(failures, [], `round ${round}: ${names.join(', ')} up to ${name}`)
      }
    }
    keys = { current: next }
  }
  over = true
  await talking
  assert.ok(answered > 300, `${answered} chats`)
  // A gateway that shares no key is refused: all of the above was verified.
  await start('a', { current: randomBytes(32).toString('base64') })
  const refused = await ask(`${running.get('a')!.urls['gateway']}/v1/chat/acme/p`)
  assert.deepEqual([refused.status, JSON.parse(refused.body).error], [502, 'upstream'])
})
