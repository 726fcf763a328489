import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { test } from 'node:test'
import { isAppError } from '#kernel'
import { until } from '#testing'
import { providerOf, setUp } from './support.ts'

const create = 'POST /sandboxes'
const invalid = (error: unknown): boolean => isAppError(error) && error.code === 'invalid_sandbox'

test('without a key the provider is not offered', async (t) => {
  assert.equal((await providerOf(t, {})).provider, undefined)
})

test('a template larger than the profile allows is refused, and leaves nothing', async (t) => {
  const { fake, launch } = await setUp(t)
  await assert.rejects(launch({ template: '../x' }), invalid)
  await assert.rejects(launch({ resources: { pids: 100 } }), invalid)
  await assert.rejects(launch({ resources: { memoryMb: 256 } }), invalid)
  await assert.rejects(launch({ resources: { cpus: 1 } }), invalid)
  await assert.rejects(launch({ resources: { diskMb: 512 } }), invalid)
  assert.equal(fake.sandboxes.size, 0)
  await launch({ resources: { memoryMb: 512, cpus: 2, diskMb: 1_024 } })
})

test('without a template of its own and a default a profile is refused', async (t) => {
  const { launch } = await setUp(t, { template: '' })
  await assert.rejects(launch(), invalid)
})

test('an answer that is lost makes no second sandbox: the first one is found by its name', async (t) => {
  const { fake, start } = await setUp(t, {}, { listLag: 2 })
  fake.plan(create, 'lose_answer')
  const { sandboxId } = await start()
  assert.deepEqual([...fake.sandboxes.keys()], [sandboxId])
  assert.equal(fake.named(create).length, 1)
})

test('nor does a proxy that answers instead of E2B', async (t) => {
  const { fake, launch } = await setUp(t)
  fake.plan(create, { status: 504, body: '<html>' })
  await assert.rejects(launch(), /504/)
  assert.equal(fake.named(create).length, 1)
})

test('what E2B refuses for its rate or for want of room is asked again, as often as needed', async (t) => {
  const { fake, start } = await setUp(t)
  const refusal = (code: number, more: object = {}) => ({ status: code, body: { code, message: 'Not now.', ...more } })
  fake.plan(create, { ...refusal(429), headers: { 'retry-after': '1' } })
  fake.plan(create, refusal(429))
  fake.plan(create, refusal(503, { error_code: 'sandbox_capacity_unavailable' }))
  const { sandboxId } = await start()
  assert.deepEqual([...fake.sandboxes.keys()], [sandboxId])
})

test('everything but creating is asked again after a failure, a lost request and a lost answer', async (t) => {
  const { fake, provider, start } = await setUp(t)
  fake.plan('POST /process.Process/Start', 'lose_answer')
  const { order, sandboxId } = await start()
  const { machine } = fake.sandboxes.get(sandboxId)!
  assert.equal((await machine.pids()).length, 1, 'one worker, although it was started twice')
  for (const [fault, times] of [
    [{ status: 500 }, 2],
    ['lose_request', 1],
    ['lose_answer', 1],
  ] as const) {
    fake.plan(`GET /sandboxes/${sandboxId}`, fault, times)
    assert.equal(await provider.status(sandboxId), 'running')
    fake.plan(`POST /sandboxes/${sandboxId}/pause`, fault, times)
    await provider.pause(sandboxId)
    fake.plan(`POST /sandboxes/${sandboxId}/connect`, fault, times)
    fake.plan('POST /process.Process/SendSignal', fault, times)
    await provider.resume(sandboxId, order)
    // The shell that becomes the worker starts a few programs first; a second worker would stay.
    await until(async () => (await machine.pids()).length === 1, 'one worker')
  }
  fake.plan(`DELETE /sandboxes/${sandboxId}`, 'lose_answer')
  await provider.destroy(sandboxId)
  assert.equal(fake.sandboxes.size, 0)
})

test('a launch that is given up ends what it began', async (t) => {
  const { fake, provider, orderOf } = await setUp(t, {}, { routeLag: 1_000 })
  const abort = new AbortController()
  const launched = provider.launch(orderOf(), abort.signal)
  const refused = assert.rejects(launched, /nobody waits/)
  await until(async () => fake.named('POST /process.Process/Start').length > 0, 'started')
  abort.abort(new Error('nobody waits any more'))
  await refused
  assert.equal(fake.sandboxes.size, 0)
})

test('a sandbox is kept alive while its runner uses it', async (t) => {
  const { fake, provider, launch } = await setUp(t, { timeout: '3s' })
  const extended = (sandboxId: string) => fake.named(`POST /sandboxes/${sandboxId}/timeout`)
  const used = await launch()
  const paused = await launch()
  await provider.pause(paused.sandboxId)
  await until(async () => extended(used.sandboxId).length >= 2, 'extended')
  for (const { body } of extended(used.sandboxId)) assert.deepEqual(JSON.parse(body.toString()), { timeout: 3 })
  assert.deepEqual(extended(paused.sandboxId), [])
})

test('a sandbox that its runner forgot is paused, and keeps its files', async (t) => {
  const { fake, provider, launch } = await setUp(t, { timeout: '1s' })
  // As if the runner had died.
  fake.plan('POST /sandboxes/i', { status: 404, body: { code: 404, message: 'Nobody asked.' } }, 1_000)
  const { sandboxId } = await launch()
  await until(async () => (await provider.status(sandboxId)) === 'paused', 'paused')
})

test('a worker that ends at once is in the log, with what it said, and its sandbox ends', async (t) => {
  const { fake, provider, logs, launch } = await setUp(t, { command: '{ echo no worker here >&2; exit 3; }' })
  const { sandboxId } = await launch()
  const said = () => logs.find(({ msg }) => String(msg).startsWith('the worker in a sandbox ended'))
  await until(async () => said() !== undefined, 'logged')
  assert.equal(said()!['exitCode'], 3)
  assert.match(String(said()!['output']), /no worker here/)
  await until(async () => (await provider.status(sandboxId)) === 'gone', 'gone')
  assert.equal(fake.sandboxes.size, 0)
})

test('a worker that says very much is watched no longer, whatever it says', async (t) => {
  const command = '{ yes | head -c 3000000; echo enough >&2; exit 3; }'
  const { provider, logs, launch } = await setUp(t, { command })
  const { sandboxId } = await launch()
  await until(async () => (await provider.status(sandboxId)) === 'gone', 'gone')
  assert.ok(!logs.some(({ msg }) => String(msg).startsWith('the worker in a sandbox ended')))
})

/** What somebody answers who took the place of the agent in a sandbox: as much as is taken, up to 64 MiB. */
function flood(head = '') {
  const part = Buffer.alloc(64 * 1024, '[')
  let sent = 0
  const stream = (response: ServerResponse): void => {
    response.write(head)
    const more = (): void => {
      while (sent < 64 * 1024 * 1024) {
        sent += part.length
        if (!response.write(part)) return
      }
      response.end()
    }
    response.on('drain', more)
    more()
  }
  return { fault: { status: 200, stream }, sent: () => sent }
}

test('of what answers in place of the agent of a sandbox, little is read', async (t) => {
  const { fake, provider, launch } = await setUp(t, {}, { routeLag: 0 })
  const little = 16 * 1024 * 1024
  const { order, sandboxId } = await launch()
  const list = flood()
  fake.plan('POST /process.Process/List', list.fault)
  assert.equal(await provider.status(sandboxId), 'running')
  assert.ok(list.sent() < little, `${list.sent()} of a list`)
  const kill = flood()
  await provider.pause(sandboxId)
  fake.plan('POST /process.Process/SendSignal', kill.fault)
  await provider.resume(sandboxId, order)
  assert.ok(kill.sent() < little, `${kill.sent()} of a kill`)
  // A message with a length of 1 GiB.
  const start = flood('\0@\0\0\0')
  const headers = { 'content-type': 'application/connect+json' }
  fake.plan('POST /process.Process/Start', { ...start.fault, headers })
  await launch()
  assert.ok(start.sent() < little, `${start.sent()} of a start`)
})
