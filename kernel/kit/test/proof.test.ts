import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { request } from 'node:http'
import { test, type TestContext } from 'node:test'
import { access, definePlugin, type PluginContext, Type, unauthorized } from '#kernel'
import { proofsOf } from '#kit'
import { testKernel } from '#testing'

const digestOf = (text: string): string => createHash('sha256').update(text).digest('hex')

/** A listener with routes of every kind, of a plugin that is set up by `mount`. */
async function guarded(t: TestContext, guards: readonly string[], mount: (ctx: PluginContext) => void) {
  const bodies: unknown[] = []
  // The routes come first: a plugin that is set up later guards them all the same.
  const routes = definePlugin({
    name: 'routes',
    async setup(ctx) {
      ctx.routes('runner', async (app) => {
        app.get('/healthz', access('public'), async () => 'ok')
        app.get('/public', access('public'), async () => 'public')
        app.get('/named/:name', access('public'), async () => 'named')
        app.get('/session', access('session'), async () => 'session')
        const schema = { body: Type.Object({}) }
        app.post('/body', { ...access('network'), schema }, async ({ body }) => void bodies.push(body))
      })
      return {}
    },
  })
  const guard = definePlugin({ name: 'guard', guards: () => guards, setup: async (ctx) => (mount(ctx as never), {}) })
  const kernel = await testKernel(t, [routes, guard], { listeners: ['runner'], listen: true })
  const get = async (url: string, headers = {}): Promise<number> =>
    (await kernel.listeners['runner']!.inject({ url, headers })).statusCode
  return { kernel, get, bodies }
}

/** Lets in who says which body it sends. */
const says = (ctx: PluginContext): void =>
  ctx.routes('runner', async (app) =>
    proofsOf(app).demand(async ({ headers: { said } }) => {
      if (typeof said !== 'string') throw unauthorized()
      return said
    }),
  )

test('a plugin guards all of a listener: routes of others, documents and what is not there; /healthz and tokens aside', async (t) => {
  const { get } = await guarded(t, ['runner'], says)
  // The last two never reach a hook.
  const urls = ['/public', '/openapi.json', '/nowhere', '/body', '/%zz', `/named/${'x'.repeat(2_000)}`]
  for (const url of urls) assert.equal(await get(url), 401, url)
  assert.deepEqual([await get('/healthz'), await get('/session')], [200, 200])
  const said = digestOf('')
  assert.deepEqual([await get('/public', { said }), await get('/nowhere', { said })], [200, 404])
  assert.equal(await get('/public', { said: digestOf('a body') }), 401, 'a body that did not come')
})

test('a guarded listener answers nobody until it is told what to demand', async (t) => {
  const { get } = await guarded(t, ['runner'], () => {})
  assert.deepEqual([await get('/public'), await get('/nowhere'), await get('/healthz')], [401, 401, 200])
})

test('a plugin that demands proof where it said nothing of it fails the boot', async (t) => {
  await assert.rejects(guarded(t, [], says), /its `guards` does not name/)
})

test('a body is handed on as it comes, and another one than was promised is never handled', async (t) => {
  const { kernel, bodies } = await guarded(t, ['runner'], says)
  const post = (body: string, said: string, chunked: boolean): Promise<number> =>
    new Promise((resolve, reject) => {
      const length = chunked ? { 'transfer-encoding': 'chunked' } : { 'content-length': String(body.length) }
      const headers = { 'content-type': 'application/json', said, ...length }
      const asking = request(`${kernel.urls['runner']}/body`, { method: 'POST', headers }, (reply) => {
        reply.resume().once('end', () => resolve(reply.statusCode!))
      })
      asking.once('error', reject)
      for (const part of body.match(/.{1,1000}/gs) ?? []) asking.write(part)
      asking.end()
    })
  const long = JSON.stringify({ text: 'x'.repeat(300_000) })
  for (const chunked of [false, true]) {
    for (const body of ['{}', long]) {
      assert.equal(await post(body, digestOf(body), chunked), 200)
      assert.equal(await post(body, digestOf(`${body} `), chunked), 401)
    }
  }
  assert.deepEqual(bodies, [{}, JSON.parse(long), {}, JSON.parse(long)])
})
