import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { RunnerSession } from '#contracts/runner'
import type { SandboxWorkers, SessionMemory } from '#contracts/workers'
import { testProfile } from '#testing'
import { SessionTable } from '../sessions.ts'
import { answer, execute, hang, profile, run, runnerOf, until } from './fixtures.ts'

const overLimit = { status: 429, code: 'limit_reached', detail: { limit: 'stateBytes', max: 100_000 } }
const limits = { stateBytes: 100_000 }
const boxed = testProfile('p', { workerMode: 'sandbox', runtime: 'runtime_a' })

/** A runner whose sandboxes keep what they are given, and count it as theirs do. */
async function boxes(t: TestContext) {
  let memory: SessionMemory | undefined
  const files = new Set<string>()
  const released: string[] = []
  const workers = {
    substrates: ['box'],
    prepare: async () => undefined,
    link: (session: RunnerSession) => ({
      hydrate: async () => {},
      exportState: async () => ({ bytes: Buffer.alloc(session.id.length), contentType: 'x' }),
      forget: async () => {},
    }),
    has: ({ id }: RunnerSession) => files.has(id),
    countIn: (counter: SessionMemory) => void (memory = counter),
    usage: () => ({ sandboxes: files.size }),
    release: async ({ id }: RunnerSession) => void released.push(id),
  } as unknown as SandboxWorkers
  const f = await runnerOf(t, answer, {}, workers)
  const bring = (id: string, bytes: number) =>
    f.runner.hydrate('acme', id, boxed, { bytes: Buffer.alloc(bytes), contentType: 'x' })
  return { ...f, memory: memory!, files, released, bring }
}

/** The limit reaches the runner with the first run. */
const allow = async (f: Awaited<ReturnType<typeof boxes>>): Promise<void> => {
  await execute(f, { sessionId: 'first', create: { profile: profile() }, limits })
}

test('what a tenant has its sessions hold is bounded, and what is stored elsewhere gives way first', async (t) => {
  const f = await boxes(t)
  await allow(f)
  for (const id of ['a', 'b']) await f.bring(id, 40_000)
  await f.bring('c', 40_000)
  await until(() => f.released.length > 0)
  assert.deepEqual(f.released, ['a'], 'the one that rests longest')
  assert.equal(f.runner.table.any('a'), undefined)
  const { stateBytes } = (await f.runner.usage('acme'))!
  assert.ok(stateBytes > 80_000 && stateBytes <= 100_000, String(stateBytes))
  await assert.rejects(f.bring('huge', 200_000), overLimit)
  assert.equal(f.runner.table.any('huge'), undefined, 'nothing is left of it')
  await f.bring('d', 10_000)
  await f.runner.hydrate('globex', 'theirs', boxed, { bytes: Buffer.alloc(90_000), contentType: 'x' })
})

test('sessions with files, with a run, or with what only this runner has do not give way', async (t) => {
  const f = await boxes(t)
  await allow(f)
  await f.bring('files', 30_000)
  f.files.add('files')
  await f.bring('unsaved', 30_000)
  f.runner.table.any('unsaved')!.changes++
  await f.bring('busy', 30_000)
  f.runner.table.occupy(f.runner.table.any('busy')!, 'run-busy')
  await assert.rejects(f.bring('more', 30_000), overLimit)
  assert.deepEqual(f.released, [])
  await assert.rejects(
    execute(f, { sessionId: 'new', create: { profile: { ...profile('q'), instructions: 'x'.repeat(30_000) } } }),
    overLimit,
  )
  f.files.delete('files')
  await f.bring('more', 30_000)
  await until(() => f.released.length > 0)
  assert.deepEqual(f.released, ['files'])
})

test('the copy that a sandbox uploads counts; a run waits until there is room', async (t) => {
  const f = await boxes(t)
  await allow(f)
  await f.bring('a', 1_000)
  f.memory.hold('acme', 'a', 80_000)
  f.runner.table.any('a')!.changes++
  assert.throws(() => f.memory.hold('acme', 'a', 120_000), overLimit)
  assert.throws(() => f.memory.hold('globex', 'a', 1), { code: 'unknown_session' })
  assert.ok((await f.runner.usage('acme'))!.stateBytes > 80_000)
  // An operator has lowered the limit.
  await assert.rejects(execute(f, { sessionId: 'first', limits: { stateBytes: 50_000 } }), { code: 'limit_reached' })
  await f.runner.deleteSession('acme', 'a')
  assert.ok((await execute(f, { sessionId: 'first', limits: { stateBytes: 50_000 } })).length > 0)
})

test('a bundle on its way to a sidecar counts until the sidecar has it', async (t) => {
  const f = await runnerOf(t, answer)
  await execute(f, { sessionId: 'first', create: { profile: profile() }, limits })
  const bring = (id: string) =>
    f.runner.hydrate('acme', id, profile(), { bytes: Buffer.alloc(60_000), contentType: 'x' })
  const both = await Promise.allSettled([bring('a'), bring('b')])
  assert.deepEqual(
    both.map(({ status }) => status),
    ['fulfilled', 'rejected'],
  )
  await bring('b')
  assert.ok((await f.runner.usage('acme'))!.stateBytes < 20_000)
})

test('attachments of the runs of a tenant are bounded together on each runner, whichever conductors send them', async (t) => {
  const f = await runnerOf(t, hang)
  const full = { status: 429, code: 'limit_reached', detail: { limit: 'attachmentBytes', max: 15 } }
  const begin = async (id: string, tenant = 'acme', more: object = {}) => {
    const attachments = [{ mediaType: 'image/png', data: 'AAAAAAAA' }]
    const sessionId = `sess-${tenant}-${id}`
    const order = run({ runId: id, sessionId, attachments, keepMs: 0, limits: { attachmentBytes: 15 }, ...more })
    const reading = f.runner.execute(tenant, order, new AbortController().signal)[Symbol.asyncIterator]()
    await reading.next()
    return reading
  }
  const first = await begin('first')
  await assert.rejects(begin('second'), full)
  assert.equal(f.runner.table.any('sess-acme-second'), undefined, 'nothing is left of it')
  const others = [await begin('theirs', 'globex'), await begin('none', 'acme', { attachments: [] })]
  await first.return!()
  await until(() => f.runner.runs.size === 2)
  others.push(await begin('second'))
  for (const reading of others) await reading.return!()
})

test('a runner of many tenants answers what each has', async (t) => {
  const f = await runnerOf(t, hang)
  const reading = f.runner.execute('acme', run({ keepMs: 0 }), new AbortController().signal)[Symbol.asyncIterator]()
  await reading.next()
  const used = async (tenant: string) => (await f.call('GET', '/runner/usage', { tenant })).json()
  const mine = await used('acme')
  assert.ok(mine.stateBytes > 100)
  assert.deepEqual(await used('globex'), { stateBytes: 0, sandboxes: 0 })
  await reading.return!()
})

test('until a conductor says more, a tenant may have what is usual', () => {
  const table = new SessionTable({
    max: 10,
    maxProfileBytes: 1e9,
    idleTtlMs: 1_000,
    toolsOf: () => [],
    hasFiles: () => false,
    onEvict() {},
  })
  table.create('acme', 'a', profile())
  assert.throws(() => table.hold('acme', 'a', 513 * 1024 ** 2), { code: 'limit_reached' })
  table.allow('acme', { stateBytes: 2 ** 40 })
  table.hold('acme', 'a', 513 * 1024 ** 2)
})
