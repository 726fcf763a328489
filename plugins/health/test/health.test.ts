import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Counter } from 'prom-client'
import { AppError, definePlugin } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { fake, testKernel } from '#testing'
import health from '../index.ts'

test('/healthz answers the text ok and asks no part', async (t) => {
  let asked = 0
  const check = async (): Promise<void> => void asked++
  const kernel = await testKernel(t, [health, fake(ReadinessChecks, { database: check })])
  for (const name of ['conductor', 'gateway', 'runner', 'internal']) {
    const reply = await kernel.listeners[name]!.inject('/healthz')
    assert.equal(reply.statusCode, 200)
    assert.match(String(reply.headers['content-type']), /^text\/plain/)
    assert.equal(reply.body, 'ok')
  }
  assert.equal(asked, 0)
})

test('/healthz of the sidecar listener is left to the sidecar, /readyz is not', async (t) => {
  const kernel = await testKernel(t, [health])
  assert.equal((await kernel.listeners.sidecar!.inject('/healthz')).statusCode, 404)
  assert.deepEqual((await kernel.listeners.sidecar!.inject('/readyz')).json(), { ready: true, checks: {} })
})

test('/readyz is 200 when every check passes and 503 naming those that do not; an answer is good for a second', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  let broken = false
  let asked = 0
  const kernel = await testKernel(t, [
    health,
    fake(ReadinessChecks, {
      kv: async () => {},
      database: async () => {
        asked++
        if (broken) throw new AppError('unavailable', 503, { message: 'The database does not answer.' })
      },
    }),
  ])
  const gateway = kernel.listeners.gateway!
  assert.deepEqual((await gateway.inject('/readyz')).json(), { ready: true, checks: { kv: 'ok', database: 'ok' } })
  broken = true
  for (let i = 0; i < 10; i++) assert.equal((await gateway.inject('/readyz')).statusCode, 200)
  assert.equal(asked, 1)
  t.mock.timers.tick(1_000)
  const reply = await gateway.inject('/readyz')
  assert.equal(reply.statusCode, 503)
  const { request_id: id, ...body } = reply.json()
  assert.equal(typeof id, 'string')
  assert.deepEqual(body, {
    error: 'not_ready',
    ready: false,
    checks: { kv: 'ok', database: 'The database does not answer.' },
  })
  broken = false
  t.mock.timers.tick(999)
  assert.equal((await gateway.inject('/readyz')).statusCode, 503)
  t.mock.timers.tick(1)
  assert.equal((await gateway.inject('/readyz')).statusCode, 200)
  assert.equal(asked, 3)
})

test('/readyz never shows the text of an unknown exception', async (t) => {
  const failing = async (): Promise<void> => {
    throw new Error('connect ECONNREFUSED 10.1.2.3:5432')
  }
  const kernel = await testKernel(t, [health, fake(ReadinessChecks, { database: failing })])
  const reply = await kernel.listeners.conductor!.inject('/readyz')
  assert.equal(reply.json().checks.database, 'failed')
  assert.doesNotMatch(reply.body, /10\.1\.2\.3/)
})

test('/readyz names a check that does not answer within 3 s, and probes meanwhile share one check', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  let asked = 0
  const hangs = (): Promise<void> => {
    asked++
    return new Promise(() => {})
  }
  const kernel = await testKernel(t, [health, fake(ReadinessChecks, { kv: hangs })])
  const replies = [kernel.listeners.gateway!.inject('/readyz'), kernel.listeners.runner!.inject('/readyz')]
  const turn = setInterval(() => t.mock.timers.tick(3_000), 5)
  const [one, two] = await Promise.all(replies)
  clearInterval(turn)
  assert.equal(one!.json().checks.kv, 'no answer in 3 s')
  assert.equal(two!.statusCode, 503)
  assert.equal(asked, 1)
})

test('/readyz is 503 as soon as the process is stopping, also when its answer was under way', async (t) => {
  let release = (): void => {}
  let began = (): void => {}
  const started = new Promise<void>((resolve) => {
    began = resolve
  })
  const slow = (): Promise<void> => {
    began()
    return new Promise((resolve) => {
      release = resolve
    })
  }
  const kernel = await testKernel(t, [health, fake(ReadinessChecks, { kv: slow })])
  const reply = kernel.listeners.gateway!.inject('/readyz')
  await started
  const stopped = kernel.stop()
  release()
  const answer = await reply
  await stopped
  assert.equal(answer.statusCode, 503)
  assert.deepEqual(answer.json().checks, { process: 'stopping' })
})

test('a part that serves with something standing in is named, and the process is ready', async (t) => {
  const kernel = await testKernel(t, [health, fake(ReadinessChecks, { kv: async () => 'PostgreSQL stands in.' })])
  const reply = await kernel.listeners.gateway!.inject('/readyz')
  assert.equal(reply.statusCode, 200)
  assert.deepEqual(reply.json(), { ready: true, checks: { kv: 'PostgreSQL stands in.' } })
})

const counting = definePlugin({
  name: 'counting',
  async setup(ctx) {
    new Counter({ name: 'things_total', help: 'Things.', registers: [ctx.metrics] }).inc(3)
    return {}
  },
})

test('/metrics answers on every listener but that of the sandboxes, with the process figures and those of the plugins', async (t) => {
  const kernel = await testKernel(t, [health, counting])
  const { workers, ...others } = kernel.listeners
  assert.equal((await workers!.inject('/metrics')).statusCode, 404)
  for (const app of Object.values(others)) {
    const reply = await app.inject('/metrics')
    assert.equal(reply.statusCode, 200)
    assert.match(String(reply.headers['content-type']), /^text\/plain; version=0\.0\.4/)
    assert.match(reply.body, /^process_cpu_user_seconds_total /m)
    assert.match(reply.body, /^nodejs_eventloop_lag_seconds /m)
    assert.doesNotMatch(reply.body, /^nodejs_eventloop_lag_(?!seconds )/m)
    assert.match(reply.body, /^things_total 3$/m)
  }
})

test('with a listener `operations` metrics and documents are there alone, those of every other listener by its name', async (t) => {
  const listeners = ['gateway', 'workers', 'operations']
  const { operations, ...others } = (await testKernel(t, [health], { listeners })).listeners
  const read = async (url: string) => (await operations!.inject(url)).json().info?.title
  for (const [name, app] of Object.entries(others)) {
    assert.equal((await app.inject('/healthz')).statusCode, 200)
    for (const url of ['/metrics', '/openapi.json', `/openapi/${name}.json`]) {
      assert.equal((await app.inject(url)).statusCode, 404, `${name}${url}`)
    }
    assert.equal(await read(`/openapi/${name}.json`), `Agent Orc ${name}`)
  }
  assert.equal(await read('/openapi.json'), 'Agent Orc operations')
  assert.match((await operations!.inject('/metrics')).body, /^process_cpu_user_seconds_total /m)
  assert.equal((await operations!.inject('/readyz')).statusCode, 200)
})

test('two kernels of one process keep their figures apart', async (t) => {
  await testKernel(t, [health, counting])
  const other = await testKernel(t, [health])
  const reply = await other.listeners.gateway!.inject('/metrics')
  assert.doesNotMatch(reply.body, /things_total/)
})

test('a step that blocks the event loop is one delay of its length in the metrics, and is there in the next scrape, too', async (t) => {
  const kernel = await testKernel(t, [health])
  const gateway = kernel.listeners.gateway!
  const turns = async (): Promise<void> => {
    for (let i = 0; i < 3; i++) await new Promise((resolve) => setTimeout(resolve, 20))
  }
  const longer = async (): Promise<number> => {
    const { body } = await gateway.inject('/metrics')
    const count = (le: string): number =>
      Number(new RegExp(`^agent_orc_event_loop_delay_seconds_bucket\\{le="${le}"\\} (\\d+)$`, 'm').exec(body)![1])
    return count('\\+Inf') - count('0.25')
  }
  await turns()
  const before = await longer()
  const until = performance.now() + 400
  while (performance.now() < until);
  await turns()
  assert.ok((await longer()) > before)
  assert.ok((await longer()) > before)
})
