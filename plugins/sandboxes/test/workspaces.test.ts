import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { RunnerSession } from '#contracts/runner'
import { answerOf, eventually, newSession, play, sandboxed, stage, startOf } from './stage.ts'

const limits = { workspaceBytes: 1_000 }
const limited = (tenantId = 'acme'): RunnerSession => ({ ...newSession(sandboxed(), tenantId), limits })
const overLimit = { status: 409, code: 'limit_exceeded', detail: { limit: 'workspaceBytes', max: 1_000 } }

/** A stage whose substrate counts files. */
async function counting(t: TestContext, config: object = {}) {
  const s = await stage(t, { config: { countFiles: '5ms', ...config } })
  const files = (s.substrate.files = new Map<string, number>())
  const call = (session: RunnerSession, name: string) =>
    s.workers.callTool(session, name, {}, { signal: new AbortController().signal, timeoutMs: 30_000 })
  /** The newest box has so many bytes from now on. */
  const fill = async (bytes: number, tenantId = 'acme'): Promise<void> => {
    files.set(s.substrate.boxes.at(-1)!.id, bytes)
    const sum = (): number => [...files.values()].reduce((a, b) => a + b)
    await eventually('it is seen', () => s.workers.usage(tenantId).workspaceBytes === sum())
  }
  return { ...s, files, call, fill }
}

test('a tenant with as many files as it may gets no further sandbox, and writes none; it can delete some', async (t) => {
  const { workers, call, fill, substrate } = await counting(t)
  const session = limited()
  await play(workers, session, 'hello')
  await fill(999)
  assert.equal((await call(session, 'write_file')).ok, true)
  await fill(1_000)
  for (const name of ['write_file', 'run_script']) {
    const refused = await call(session, name)
    assert.equal(refused.ok, false)
    assert.match(refused.content, /The limit workspaceBytes of this tenant is 1000\./)
  }
  assert.equal((await call(session, 'shell')).ok, true, 'which can remove files')
  await assert.rejects(play(workers, limited(), 'hello'), overLimit)
  assert.equal(answerOf(await play(workers, limited('globex'), 'hello')), 'ok')
  const [lease] = await workers.leases('acme')
  assert.equal(lease!.workspaceBytes, 1_000)
  substrate.files!.clear()
  await eventually('there is room', () => workers.usage('acme').workspaceBytes === 0)
  assert.equal((await call(session, 'write_file')).ok, true)
})

test('what goes on writing beyond the limit is stopped, told why, and not woken before there is room', async (t) => {
  const { workers, call, fill, substrate, files } = await counting(t)
  const small = limited()
  await play(workers, small, 'hello')
  await fill(400)
  const session = limited()
  await play(workers, session, 'marmalade')
  const run = play(workers, session, 'wait')
  const [, box] = substrate.boxes
  await eventually('it is under way', () => box!.worker!.commands.filter(({ kind }) => kind === 'run').length === 2)
  files.set(box!.id, 800)
  await assert.rejects(run, overLimit)
  await eventually('it stands still', () => box!.state === 'paused')
  assert.equal(substrate.boxes[0]!.state, 'running', 'the one that did not grow goes on')
  await assert.rejects(play(workers, session, 'recall', { resume: true }), overLimit)
  assert.match((await call(session, 'shell')).content, /limit workspaceBytes/)
  assert.equal(box!.resumed.length, 0)
  await workers.release(small)
  const lines = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(lines), answerOf(lines)], ['resumed', 'marmalade'])
})

test('what sleeps is counted once more, and then no more; what ended by itself until its files are gone', async (t) => {
  const { workers, fill, substrate, files } = await counting(t, { idlePause: '50ms' })
  const session = limited()
  await play(workers, session, 'hello')
  const [box] = substrate.boxes
  const { pause } = substrate.provider
  substrate.provider.pause = async (id) => {
    files.set(id, 20)
    await pause(id)
  }
  await eventually('it is paused', () => box!.state === 'paused')
  await eventually('what it wrote last is seen', () => workers.usage('acme').workspaceBytes === 20)
  substrate.crash(box!)
  await workers.leases('acme')
  assert.equal(workers.usage('acme').workspaceBytes, 20)
  await play(workers, session, 'again')
  await eventually('the former one is destroyed', () => substrate.calls.includes(`destroy ${box!.id}`))
  files.delete(box!.id)
  await fill(1)
})

test('a provider that cannot tell says nothing, and bounds nothing', async (t) => {
  const { workers, substrate } = await stage(t, { config: { countFiles: '5ms' } })
  const session = { ...limited(), limits: { workspaceBytes: 0 } }
  // A limit of zero bytes is reached even without files.
  await assert.rejects(play(workers, session, 'hello'), { code: 'limit_exceeded' })
  const other = limited()
  assert.equal(answerOf(await play(workers, other, 'hello')), 'ok')
  assert.deepEqual(workers.usage('acme'), { sandboxes: 1 })
  assert.equal('workspaceBytes' in (await workers.leases('acme'))[0]!, false)
  assert.equal(substrate.live().length, 1)
})
