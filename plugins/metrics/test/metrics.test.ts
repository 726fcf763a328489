import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Counter } from 'prom-client'
import { definePlugin } from '#kernel'
import { testKernel } from '#testing'
import metrics from '../index.ts'

const counting = definePlugin({
  name: 'counting',
  async setup(ctx) {
    new Counter({ name: 'things_total', help: 'Things.', registers: [ctx.metrics] }).inc(3)
    return {}
  },
})

test('/metrics answers on every listener but that of the sandboxes, with the process figures and those of the plugins', async (t) => {
  const kernel = await testKernel(t, [metrics, counting])
  const { workers, ...others } = kernel.listeners
  assert.equal((await workers!.inject('/metrics')).statusCode, 404)
  for (const app of Object.values(others)) {
    const reply = await app.inject('/metrics')
    assert.equal(reply.statusCode, 200)
    assert.match(String(reply.headers['content-type']), /^text\/plain; version=0\.0\.4/)
    assert.match(reply.body, /^process_cpu_user_seconds_total /m)
    assert.match(reply.body, /^things_total 3$/m)
  }
})

test('two kernels of one process keep their figures apart', async (t) => {
  await testKernel(t, [metrics, counting])
  const other = await testKernel(t, [metrics])
  const reply = await other.listeners.gateway!.inject('/metrics')
  assert.doesNotMatch(reply.body, /things_total/)
})
