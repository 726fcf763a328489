import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testProfile } from '#testing'
import type { FinishRun, RunStore } from '#contracts/run-store'
import { meddling, profileNamed, result, runId, type Script, stage, text } from './stage.ts'
import { MemoryRunStore } from '../memory/store.ts'

const never = new AbortController().signal

const inSandbox = (idleSeconds: number): Script =>
  async function* () {
    yield { type: 'progress', stage: 'runner_accepted' }
    yield { type: 'progress', stage: 'sandbox', provider: 'process', start: 'running', startMs: 1, idleSeconds }
    yield text('done')
    yield result('done')
  }

/** The store, with what it is told of the ends of runs. */
const recording = (store: RunStore, ends: FinishRun[]): RunStore =>
  meddling(store, {
    finish(end) {
      ends.push(end)
      return store.finish(end)
    },
  })

test('a run in a sandbox ends with what it used of it, and one without ends with nothing of the kind', async (t) => {
  const ends: FinishRun[] = []
  const store = new MemoryRunStore()
  const s = await stage(t, { store: recording(store, ends) })
  const play = async (script: Script): Promise<void> => {
    s.runner.script = script
    const { events } = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id: runId() }, 0, never)
    await Array.fromAsync(events)
  }
  await play(inSandbox(30))
  await play(async function* () {
    yield { type: 'progress', stage: 'runner_accepted' }
    yield text('done')
    yield result('done')
  })
  assert.deepEqual(
    ends.map(({ status, sandbox }) => [status, sandbox]),
    [
      ['ok', { idleSeconds: 30 }],
      ['ok', undefined],
    ],
  )
})

test('a run that is tried again counts the idle time before it once', async (t) => {
  const ends: FinishRun[] = []
  const store = new MemoryRunStore()
  const s = await stage(t, {
    store: recording(store, ends),
    profiles: [{ ...profileNamed('writer'), onCrash: 'retry' }],
  })
  let attempt = 0
  s.runner.script = async function* (run, signal) {
    if (attempt++ > 0) return yield* inSandbox(3)(run, signal)
    yield { type: 'progress', stage: 'runner_accepted' }
    yield { type: 'progress', stage: 'sandbox', provider: 'process', start: 'launched', startMs: 1, idleSeconds: 20 }
    yield { type: 'error', code: 'sidecar_lost', message: 'It stopped.', retryable: true }
  }
  const { events } = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id: runId() }, 0, never)
  await Array.fromAsync(events)
  assert.deepEqual(
    ends.map(({ status, sandbox }) => [status, sandbox]),
    [['ok', { idleSeconds: 20 }]],
  )
})

test('runs of a profile with a sandbox ask for a runner that has its substrate, for a new session and for one that exists', async (t) => {
  const profiles = [
    testProfile('named', { workerMode: 'sandbox', sandbox: { provider: 'vm' } }),
    testProfile('default', { workerMode: 'sandbox' }),
    testProfile('tools', { sandbox: { provider: 'vm' } }),
    testProfile('static'),
  ]
  const s = await stage(t, { profiles })
  for (const { name } of profiles) {
    s.runner.asked.length = 0
    const first = await s.dispatch.start('acme', { profile: name, prompt: 'x', id: runId() }, 0, never)
    await Array.fromAsync(first.events)
    const { sessionId } = (await s.store.listRuns('acme', { profile: name })).items[0]!
    const second = await s.dispatch.start('acme', { profile: name, prompt: 'x', id: runId(), sessionId }, 0, never)
    await Array.fromAsync(second.events)
    const substrates = s.runner.asked.flatMap((order) => ('runtime' in order ? [order.substrate] : []))
    const expected = { named: 'vm', default: true, tools: 'vm', static: undefined }[name]
    assert.deepEqual(substrates, [expected, expected], name)
  }
})
