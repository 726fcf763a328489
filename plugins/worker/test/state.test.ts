import assert from 'node:assert/strict'
import { readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { terminalOf, testEnvelope } from '#testing'
import { createDisk } from '../disk.ts'
import { createFakeLink } from './fake-link.ts'
import { type ScriptedRunner, startScriptedRunner } from './scripted-runner.ts'
import { folder, newSession, startWorker, type StartedWorker, until } from './support.ts'

const timeout = 30_000
const bundle = (...told: string[]) => ({ bytes: Buffer.from(JSON.stringify(told)), contentType: 'application/json' })
const stored = (rev: number, ...told: string[]) => ({
  bytes: bundle(...told).bytes,
  headers: { 'content-type': 'application/json', 'x-agent-orc-state-rev': String(rev) },
})

async function say(
  runner: ScriptedRunner,
  { identity }: StartedWorker,
  prompt: string,
  resume = false,
): Promise<string> {
  const envelope = testEnvelope({ sessionId: identity.sessionId, prompt, resume })
  runner.order(identity.sessionId, { kind: 'run', envelope })
  const last = terminalOf(await runner.run(envelope.runId))
  return last.type === 'result' ? last.text : last.code
}

const revOf = (runner: ScriptedRunner, sessionId: string): string | undefined =>
  runner.states.get(sessionId)?.headers['x-agent-orc-state-rev']

test('after each run the state is on disk and at the runner, under a higher count', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const stateDir = join(await folder(t), 'not', 'there', 'yet')
  const worker = await startWorker(t, { url: runner.url, stateDir })
  const { sessionId } = worker.identity
  for (const [i, word] of ['one', 'two'].entries()) {
    await say(runner, worker, word)
    await runner.until(() => revOf(runner, sessionId) === String(i + 1))
  }
  const state = runner.states.get(sessionId)!
  assert.equal(state.bytes.toString(), '["one","two"]')
  assert.equal(state.headers['x-runtime-session-id'], 'vendor-1')
  const onDisk = await createDisk(stateDir).read(sessionId)
  assert.deepEqual([onDisk?.rev, onDisk?.runtime, onDisk?.bundle.runtimeSessionId], [2, 'general', 'vendor-1'])
  assert.equal(Buffer.from(onDisk!.bundle.bytes).toString(), '["one","two"]')
  assert.deepEqual(await readdir(stateDir), [`${sessionId}.state`], 'nothing unfinished is left')
})

async function restored(t: TestContext, { disk, runner: rev }: { disk?: number; runner?: number }): Promise<string> {
  const runner = await startScriptedRunner(t)
  const [stateDir, sessionId] = [await folder(t), newSession()]
  if (rev !== undefined) runner.states.set(sessionId, stored(rev, 'runner'))
  if (disk !== undefined) {
    await createDisk(stateDir).write(sessionId, { rev: disk, runtime: 'general', bundle: bundle('disk') })
  }
  const worker = await startWorker(t, { url: runner.url, stateDir, sessionId })
  return say(runner, worker, 'now', true)
}

test('the copy with the higher count is restored, whoever has it', { timeout }, async (t) => {
  assert.equal(await restored(t, { disk: 3, runner: 2 }), 'disk, now')
  assert.equal(await restored(t, { disk: 2, runner: 3 }), 'runner, now')
  assert.equal(await restored(t, { disk: 2, runner: 2 }), 'runner, now')
  assert.equal(await restored(t, { disk: 1 }), 'disk, now')
  assert.equal(await restored(t, { runner: 1 }), 'runner, now')
  assert.equal(await restored(t, {}), 'session_state_missing')
})

test('a conversation is restored before the first poll', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const sessionId = newSession()
  runner.states.set(sessionId, stored(1, 'before'))
  const { link } = await startWorker(t, { url: runner.url, sessionId })
  await runner.until(() => runner.polls[0])
  assert.deepEqual(link.sessions.get(sessionId), ['before'])
})

test('a newer copy from disk is uploaded, and counted on from', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const [stateDir, sessionId] = [await folder(t), newSession()]
  runner.states.set(sessionId, stored(5, 'runner'))
  await createDisk(stateDir).write(sessionId, { rev: 8, runtime: 'general', bundle: bundle('disk') })
  const worker = await startWorker(t, { url: runner.url, stateDir, sessionId })
  await runner.until(() => revOf(runner, sessionId) === '8')
  await say(runner, worker, 'now')
  await runner.until(() => revOf(runner, sessionId) === '9')
})

test('a runner that has no state since a later count than the disk is right', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const [stateDir, sessionId] = [await folder(t), newSession()]
  await createDisk(stateDir).write(sessionId, { rev: 8, runtime: 'general', bundle: bundle('disk') })
  runner.intercept((request, response) => {
    if (request.method !== 'GET' || !request.url!.endsWith('/state')) return false
    response.writeHead(404, { 'x-agent-orc-state-rev': '1000' }).end()
    return true
  })
  const worker = await startWorker(t, { url: runner.url, stateDir, sessionId })
  assert.equal(await say(runner, worker, 'now'), 'now')
  await runner.until(() => revOf(runner, sessionId) === '1001')
})

test(
  'where several runtimes could own it, a runner’s copy waits for the run that says which',
  { timeout },
  async (t) => {
    const runner = await startScriptedRunner(t)
    const sessionId = newSession()
    runner.states.set(sessionId, stored(3, 'before'))
    const link = createFakeLink(['general', 'runtime_a'])
    const worker = await startWorker(t, { url: runner.url, sessionId, link })
    runner.order(sessionId, { kind: 'export_state' })
    await runner.until(() => runner.asked.some(({ method }) => method === 'PUT'))
    assert.equal(runner.states.get(sessionId)!.bytes.toString(), '["before"]')
    assert.equal(link.sessions.size, 0)
    assert.equal(await say(runner, worker, 'now', true), 'before, now')
  },
)

test('export_state is answered with the state, or with a word that there is none', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const worker = await startWorker(t, { url: runner.url })
  const { sessionId } = worker.identity
  runner.order(sessionId, { kind: 'export_state' })
  const deleted = await runner.until(() => runner.asked.find(({ method }) => method === 'DELETE'))
  assert.equal(deleted.headers['x-agent-orc-state-rev'], '1')
  await say(runner, worker, 'hello')
  await runner.until(() => revOf(runner, sessionId) === '2')
  runner.order(sessionId, { kind: 'export_state' })
  await runner.until(() => revOf(runner, sessionId) === '3')
})

test(
  'a run that was not taken changes no state, and a copy that cannot be restored is not replaced by nothing',
  { timeout },
  async (t) => {
    const runner = await startScriptedRunner(t)
    const sessionId = newSession()
    const corrupt = { ...stored(3), bytes: Buffer.from('corrupt') }
    runner.states.set(sessionId, corrupt)
    const worker = await startWorker(t, { url: runner.url, sessionId })
    assert.equal(await say(runner, worker, 'now', true), 'session_state_missing')
    const id = runner.order(sessionId, { kind: 'export_state' })
    // The answer to a later command proves that the worker has looked at this one.
    runner.order(sessionId, { kind: 'tool', callId: 'later', name: 'x', input: {}, timeoutMs: 1_000 })
    await runner.until(
      () => runner.results.has('later') && runner.polls.some(({ query }) => Number(query.get('after')) > id),
    )
    assert.equal(runner.states.get(sessionId), corrupt)
    assert.deepEqual(
      runner.asked.filter(({ path, method }) => path.endsWith('/state') && method !== 'GET'),
      [],
    )
    // A conversation that begins anew is saved like any other.
    assert.equal(await say(runner, worker, 'anew'), 'anew')
    await runner.until(() => revOf(runner, sessionId) === '4')
  },
)

test('a file on disk that is torn, of another form or not there is as if there were none', { timeout }, async (t) => {
  const path = await folder(t)
  const disk = createDisk(path)
  assert.equal(await disk.read('s1'), undefined)
  await disk.write('s1', { rev: 1, runtime: 'general', bundle: bundle('x') })
  const whole = `{"version":1,"rev":1,"runtime":"general","contentType":"application/json","size":5}\n["x"]`
  for (const text of [
    whole.slice(0, -1),
    `${whole}!`,
    whole.replace('"version":1', '"version":2'),
    'no line',
    '{"torn\n',
    '\n',
    'null\n',
  ]) {
    await writeFile(join(path, 's1.state'), text)
    assert.equal(await disk.read('s1'), undefined, text)
  }
  await writeFile(join(path, 's1.state'), whole)
  assert.equal((await disk.read('s1'))?.rev, 1)
  await disk.remove('s1')
  await disk.remove('s1')
  assert.equal(await disk.read('s1'), undefined)
})

test('a disk that cannot be written keeps no state from the runner', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const file = join(await folder(t), 'file')
  await writeFile(file, '')
  const worker = await startWorker(t, { url: runner.url, stateDir: file })
  await say(runner, worker, 'hello')
  await runner.until(() => revOf(runner, worker.identity.sessionId) === '1')
  await until(() => worker.kernel.logs.some(({ msg }) => msg === 'the state was not written to disk'), 'it is logged')
})
