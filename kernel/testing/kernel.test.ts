import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Type } from '@sinclair/typebox'
import { access, capability, definePlugin, Duration, ndjson, Settings } from '#kernel'
import { fake, testKernel } from '#testing'

const Greeting = capability<{ hello(name: string): string }>('test.greeting')

const greeter = definePlugin({
  name: 'greeter',
  config: Settings({ wait: Duration('25s') }),
  requires: { greeting: Greeting },
  async setup(ctx) {
    ctx.routes('gateway', async (app) => {
      app.get(
        '/hi/:name',
        { ...access('public'), schema: { params: Type.Object({ name: Type.String() }) } },
        async (request) => ({ text: ctx.deps.greeting.hello(request.params.name), wait: ctx.config.wait }),
      )
      app.get('/lines', access('public'), (request, reply) =>
        ndjson(request, reply, async function* () {
          yield 'one\n'
          yield 'two\n'
        }),
      )
    })
    return {}
  },
})

test('a test kernel boots real plugins on fakes and answers without a port', async (t) => {
  const kernel = await testKernel(t, [
    { name: 'greeter', plugin: greeter, config: { wait: '2m' } },
    fake(Greeting, { hello: (n) => `hi ${n}` }),
  ])
  const reply = await kernel.listeners.gateway!.inject('/hi/ada')
  assert.deepEqual(reply.json(), { text: 'hi ada', wait: 120_000 })
  const lines = await kernel.listeners.gateway!.inject('/lines')
  assert.equal(lines.body, 'one\ntwo\n')
  assert.equal(lines.headers['content-type'], 'application/x-ndjson')
})
