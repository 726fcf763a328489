import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Counter } from 'prom-client'
import { access, capability, definePlugin, ndjson } from '#kernel'
import { testKernel } from '#testing'
import health from '../plugins/health/index.ts'

const Counting = capability<{ next(): number }>('test.counting')

const counting = definePlugin({
  name: 'counting',
  provides: { counting: Counting },
  async setup(ctx) {
    let count = 0
    const counter = new Counter({ name: 'counted_total', help: 'Counted.', registers: [ctx.metrics] })
    return {
      counting: {
        next() {
          counter.inc()
          return ++count
        },
      },
    }
  },
})

const serving = definePlugin({
  name: 'serving',
  requires: { counting: Counting },
  async setup(ctx) {
    ctx.routes('gateway', async (app) => {
      app.get('/next', access('public'), async () => ({ next: ctx.deps.counting.next() }))
      app.get('/wait', access('public'), (request, reply) =>
        ndjson(request, reply, async function* (signal) {
          yield 'open\n'
          await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
          yield 'end\n'
        }),
      )
    })
    return {}
  },
})

test('two kernels in one process share no capability, metric, listener or stream, and stop apart', async (t) => {
  const plugins = [counting, serving, health]
  const one = await testKernel(t, plugins, { listeners: ['gateway'], listen: true })
  const two = await testKernel(t, plugins, { listeners: ['gateway'], listen: true })
  const next = async (kernel: typeof one): Promise<number> =>
    ((await (await fetch(`${kernel.urls['gateway']}/next`)).json()) as { next: number }).next
  assert.notEqual(one.urls['gateway'], two.urls['gateway'])
  assert.deepEqual([await next(one), await next(one), await next(two)], [1, 2, 1])
  assert.match(await (await fetch(`${two.urls['gateway']}/metrics`)).text(), /^counted_total 1$/m)

  const first = await fetch(`${one.urls['gateway']}/wait`)
  const second = await fetch(`${two.urls['gateway']}/wait`)
  const reader = second.body!.getReader()
  await reader.read()
  await one.stop()
  assert.equal(await first.text(), 'open\nend\n')
  assert.equal(await next(two), 2)
  assert.equal((await fetch(`${two.urls['gateway']}/readyz`)).status, 200)
  const rest = reader.read()
  await two.stop()
  assert.equal(new TextDecoder().decode((await rest).value), 'end\n')
})
