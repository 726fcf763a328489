import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runnerHash } from '#contracts/ids'
import { everyTenant } from '#kernel'
import { createSubstrates } from '../substrates.ts'
import { eventually, newSession, play, sandboxed, stage } from './stage.ts'
import { createSubstrate } from './substrate.ts'

test('what a former process of this runner left behind is destroyed, and nothing of another runner', async (t) => {
  const substrate = createSubstrate(t)
  const left = (owner: string) =>
    substrate.boxes.push({
      id: `left-${owner}`,
      order: { owner } as never,
      state: 'paused',
      worker: undefined,
      resumed: [],
    })
  left(runnerHash('http://runner.test'))
  left('other')
  substrate.away = true
  const { workers, kernel } = await stage(t, { substrate })
  await eventually('it cannot be asked', () =>
    kernel.logs.some(({ msg }) => msg === 'a sandbox provider could not list the sandboxes of former processes'),
  )
  substrate.away = false
  const session = newSession()
  await play(workers, session, 'hello')
  await eventually('it is destroyed', () => substrate.boxes[0]!.state === 'gone')
  assert.equal(substrate.boxes[1]!.state, 'paused')
  assert.equal((await workers.lease('acme', session.id))?.state, 'running', 'its own sandboxes stay')
})

test('a stopped runner leaves no sandbox: awake, asleep, warm or just starting', async (t) => {
  const { workers, substrate, kernel } = await stage(t, { config: { warm: 'acme/coder=1' } })
  workers.sawProfile('acme', 'coder', sandboxed())
  await eventually('one is warm', () => substrate.live().length === 1)
  await play(workers, newSession(sandboxed('other')), 'hello')
  const { promise, resolve } = Promise.withResolvers<void>()
  substrate.gate = promise
  const starting = play(workers, newSession(sandboxed('third')), 'hello')
  await eventually('one is starting', () => substrate.calls.filter((call) => call === 'launch').length >= 3)
  const stopped = kernel.stop()
  await assert.rejects(starting, { code: 'runner_stopping' })
  resolve()
  await stopped
  assert.deepEqual(substrate.live(), [])
})

test('a provider that is away does not keep a runner from stopping', { timeout: 30_000 }, async (t) => {
  const { workers, substrate, kernel } = await stage(t)
  await play(workers, newSession(), 'hello')
  Object.assign(substrate.provider, { destroy: () => new Promise(() => {}) })
  await kernel.stop()
})

test('awake time between runs is told to the next one, once; sleep and runs are not in it', async (t) => {
  const realNow = Date.now
  let ahead = 0
  t.mock.method(Date, 'now', () => realNow() + ahead)
  const { workers, substrate } = await stage(t)
  const session = newSession()
  await play(workers, session, 'hello')
  const idle = async (): Promise<number> => Number((await play(workers, session, 'hello'))[0]!['idleSeconds'])
  ahead += 120_000
  const told = await idle()
  assert.ok(told >= 120 && told < 150, `${told} s`)
  assert.ok((await idle()) < 30)
  const prepared = await workers.prepare(session, { resume: false, onUsage() {} }, new AbortController().signal)
  ahead += 120_000
  prepared!.over()
  assert.ok((await idle()) < 30, 'a run counts its own time')
  substrate.boxes[0]!.state = 'paused'
  workers.invalidate('box', substrate.boxes[0]!.id)
  assert.equal((await workers.lease('acme', session.id))?.state, 'paused')
  substrate.boxes[0]!.worker!.stop()
  ahead += 120_000
  assert.ok((await idle()) < 30, 'asleep')
})

test('a runner offers what it was told to, or all that it has; a default only where it is clear', () => {
  const provider = {} as never
  const configured = new Map([
    ['vm', provider],
    ['box', provider],
  ])
  const tenants = new Map([...configured.keys()].map((name) => [name, everyTenant]))
  const made = (offered: string[] = [], ...byDefault: string[]) =>
    createSubstrates({ configured, tenants, offered, byDefault })
  assert.deepEqual([made().names, made().fallback], [['box', 'vm'], undefined])
  assert.deepEqual([made(['vm']).names, made(['vm']).fallback], [['vm'], 'vm'])
  assert.equal(made([], 'vm').fallback, 'vm')
  assert.equal(made([], 'moon', 'vm', 'box').fallback, 'vm')
  assert.equal(made(['box'], 'moon', 'vm').fallback, 'box')
  assert.throws(() => made().choose('acme', undefined), {
    message: 'This runner has no default sandbox provider; name one as sandbox.provider: box, vm.',
  })
  assert.throws(() => made(['moon']), /AGENT_ORC_SANDBOX_PROVIDERS names moon, .*; it has vm, box/)
  assert.throws(() => made(['vm'], 'box'), /AGENT_ORC_SANDBOX_DEFAULT is box, .*; it offers vm/)
  const none = createSubstrates({ configured: new Map(), tenants: new Map(), offered: [], byDefault: [] })
  assert.deepEqual([none.names, none.fallback], [[], undefined])
  assert.throws(() => none.choose('acme', undefined), { message: 'This runner has no sandboxes for this tenant.' })
})

test('a provider is there for the tenants that it names: to another it is none, and not its default', () => {
  const [vm, box] = [{}, {}] as [never, never]
  const configured = new Map([
    ['vm', vm],
    ['box', box],
  ])
  const only = (...ids: string[]) => ({ allows: (id: string) => ids.includes(id), empty: ids.length === 0 })
  const tenants = new Map([
    ['vm', only('acme')],
    ['box', only('acme', 'globex')],
  ])
  const { choose } = createSubstrates({ configured, tenants, offered: [], byDefault: ['vm'] })
  assert.equal(choose('acme', undefined).provider, vm)
  assert.equal(choose('acme', 'box').provider, box)
  assert.equal(choose('globex', undefined).provider, box, 'the only one that it may use')
  const refused = { code: 'no_sandbox_substrate' }
  assert.throws(() => choose('globex', 'vm'), {
    ...refused,
    message: "This runner has no sandbox provider 'vm' for this tenant; it has box.",
  })
  assert.throws(() => choose('initech', undefined), {
    ...refused,
    message: 'This runner has no sandboxes for this tenant.',
  })
  assert.throws(() => choose('initech', 'box'), refused)
})
