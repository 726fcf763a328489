import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '#testing'
import { conductor } from './events.ts'

const told = () => {
  const calls: string[] = []
  return { calls, tell: async (provider: string, id: string) => calls.push(`${provider} ${id}`) }
}

test('a recognized event is answered at once, and told to every runner', async (t) => {
  const [one, two] = [told(), told()]
  const { post } = await conductor(t, [one.tell, () => new Promise(() => {}), two.tell])
  const reply = await post('sandbox box-1')
  assert.equal(reply.statusCode, 202)
  assert.deepEqual(reply.json(), { queued: 1 })
  await until(async () => one.calls.length + two.calls.length === 2, 'told')
  assert.deepEqual([one.calls, two.calls], [['plain box-1'], ['plain box-1']])
})

test('a runner that fails keeps nobody from being told', async (t) => {
  const one = told()
  const { post } = await conductor(t, [() => Promise.reject(new Error('away')), one.tell])
  assert.equal((await post('sandbox box-1')).statusCode, 202)
  await until(async () => one.calls.length === 1, 'told')
})

test('other deliveries are taken and ignored, and no runner is told', async (t) => {
  const one = told()
  const { post } = await conductor(t, [one.tell])
  for (const payload of ['hello', '']) {
    const reply = await post(payload)
    assert.equal(reply.statusCode, 202)
    assert.deepEqual(reply.json(), { ignored: true })
  }
  assert.deepEqual(one.calls, [])
})

test('a provider nobody reads is 404, and what its decoder refuses is what it says', async (t) => {
  const { post } = await conductor(t, [])
  assert.equal((await post('sandbox box-1', {}, 'nobody')).statusCode, 404)
  assert.equal((await post('sandbox box-1', {}, 'constructor')).statusCode, 404)
  const reply = await post('unreadable')
  assert.equal(reply.statusCode, 400)
  assert.equal(reply.json().error, 'invalid_sandbox')
})

test('bytes reach the decoder as they came, whatever they are said to be', async (t) => {
  const { post, deliveries } = await conductor(t, [])
  const bytes = Buffer.from([0x7b, 0x00, 0xff, 0xfe, 0x0a, 0x7d])
  const types = ['application/json', 'text/plain', 'application/json; charset=utf-16', 'multipart/form-data', '']
  for (const type of types) {
    const reply = await post(bytes, { ...(type === '' ? {} : { 'content-type': type }), 'e2b-signature': 'x' })
    assert.equal(reply.statusCode, 202, type)
  }
  assert.equal(deliveries.length, types.length)
  for (const { body, headers } of deliveries) {
    assert.deepEqual(body, bytes)
    assert.equal(headers['e2b-signature'], 'x')
  }
})

test('a body of 64 KiB is read, a larger one is 400, with and without its length, and so is what has no kind', async (t) => {
  const { app, post, deliveries } = await conductor(t, [])
  assert.equal((await post('x'.repeat(64 * 1024))).statusCode, 202)
  assert.equal((await post('x', { 'content-type': 'junk' })).statusCode, 400)
  const declared = await post('x'.repeat(64 * 1024 + 1))
  assert.equal(declared.statusCode, 400)
  assert.equal(declared.json().error, 'unreadable_event')
  const address = await app.listen({ host: '127.0.0.1', port: 0 })
  const streamed = await fetch(`${address}/api/sandbox-events/plain`, {
    method: 'POST',
    body: new ReadableStream({
      start(controller) {
        for (let i = 0; i < 65; i++) controller.enqueue(new Uint8Array(1_024))
        controller.close()
      },
    }),
    duplex: 'half',
  } as RequestInit)
  assert.equal(streamed.status, 400)
  assert.equal(((await streamed.json()) as { error: string }).error, 'unreadable_event')
  assert.equal(deliveries.length, 1)
})

test('an address has its share of deliveries a minute, and hears when to go on', async (t) => {
  const { post, deliveries } = await conductor(t, [], { requestsPerMinute: 2 })
  for (let i = 0; i < 2; i++) assert.equal((await post('hello')).statusCode, 202)
  const reply = await post('hello')
  assert.equal(reply.statusCode, 429)
  assert.equal(reply.json().error, 'rate_limited')
  assert.equal(reply.headers['retry-after'], '2')
  assert.equal(reply.headers['ratelimit-policy'], '"sandbox-events";q=2;w=60')
  // The limit also counts deliveries that would be refused anyway.
  assert.equal((await post('hello', {}, 'nobody')).statusCode, 429)
  assert.equal(deliveries.length, 2)
})

test('behind a trusted proxy the client is who the proxy says, and nobody can choose to be another', async (t) => {
  const { post, counts } = await conductor(t, [], { trustedProxies: '127.0.0.1, 10.0.0.0/8' })
  await post('hello', { 'x-forwarded-for': '198.51.100.1, 203.0.113.9, 10.1.2.3' })
  await post('hello', { 'x-forwarded-for': '2001:db8:1:2:3:4:5:6' })
  await post('hello', { 'x-forwarded-for': 'unknown' })
  const keys = ['203.0.113.9', '2001:db8:1:2::/64', '127.0.0.1'].map((client) => `ao:sandbox-events:${client}`)
  assert.deepEqual([...counts.keys()], keys)
  const direct = await conductor(t, [])
  await direct.post('hello', { 'x-forwarded-for': '203.0.113.9' })
  assert.deepEqual([...direct.counts.keys()], ['ao:sandbox-events:127.0.0.1'])
})

test('beyond 32 events that runners are being told of, others are shed: answered 202, logged, counted', async (t) => {
  const held: (() => void)[] = []
  const { kernel, post } = await conductor(t, [() => new Promise((resolve) => held.push(() => resolve(2)))])
  for (let i = 0; i < 32; i++) assert.deepEqual((await post(`sandbox box-${i}`)).json(), { queued: 1 })
  const shed = await post('sandbox box-32')
  assert.equal(shed.statusCode, 202)
  assert.deepEqual(shed.json(), { queued: 0 })
  const logged = kernel.logs.filter(({ msg }) => msg === 'sandbox_event.fanout_shed')
  assert.deepEqual(
    logged.map(({ provider, sandboxId }) => [provider, sandboxId]),
    [['plain', 'box-32']],
  )
  assert.equal(held.length, 32)
  for (const release of held) release()
  await until(async () => (await post('sandbox box-33')).json().queued === 1, 'taken again')
})

test('a runner that never answers holds nothing up for long', async (t) => {
  const { post } = await conductor(t, [() => new Promise(() => {})])
  for (let i = 0; i < 32; i++) await post(`sandbox box-${i}`)
  assert.deepEqual((await post('sandbox box-32')).json(), { queued: 0 })
  await until(async () => (await post('sandbox box-33')).json().queued === 1, 'taken again')
})

test('what became of deliveries is counted', async (t) => {
  const { registry, post } = await conductor(t, [async () => 3], { requestsPerMinute: 3 })
  await post('sandbox box-1')
  await post('hello')
  await post('unreadable')
  await post('hello')
  const metrics = () => registry.metrics()
  await until(async () => (await metrics()).includes('sandbox_event_invalidations_total 3'), 'counted')
  for (const outcome of ['queued', 'ignored', 'refused', 'limited']) {
    assert.match(await metrics(), new RegExp(`sandbox_events_total\\{outcome="${outcome}"\\} 1`))
  }
})
