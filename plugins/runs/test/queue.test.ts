import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { AppError } from '#kernel'
import type { RunStore } from '#contracts/run-store'
import type { LogChunk } from '#contracts/run-event'
import type { RunSummary, SubTask } from '#contracts/runs'
import {
  endless,
  eventually,
  meddling,
  result,
  runId,
  type Script,
  sharedKv,
  stage,
  type Stage,
  text,
} from './stage.ts'
import { MemoryRunStore } from '../memory/store.ts'

const never = new AbortController().signal

async function typesOf(chunks: AsyncIterable<LogChunk>): Promise<string[]> {
  let lines = ''
  for await (const chunk of chunks) lines += chunk.lines.toString()
  return lines
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line).type)
}

/** A runner whose runs answer with their prompt when they are told to, and say when they have begun. */
function gated() {
  const gates = new Map<string, () => void>()
  const script: Script = async function* (run, signal) {
    yield text('working')
    await new Promise<void>((resolve) => {
      gates.set(run.prompt, resolve)
      signal.addEventListener('abort', () => resolve())
    })
    yield result(`answer to ${run.prompt}`)
  }
  const begun = (prompt: string): Promise<void> => eventually(`${prompt} begins`, () => gates.has(prompt))
  const open = async (prompt: string): Promise<void> => {
    await begun(prompt)
    gates.get(prompt)!()
  }
  return { script, begun, open }
}

const post = (s: Stage, task: Partial<SubTask> & { prompt: string }) =>
  s.kernel.listeners['conductor']!.inject({
    method: 'POST',
    url: '/api/runs',
    payload: { profile: 'writer', ...task },
  })

/** A session whose first run executes. */
async function busy(s: Stage, prompt = 'first'): Promise<{ sessionId: string; runId: string }> {
  const answer = await post(s, { prompt })
  assert.equal(answer.statusCode, 202)
  return answer.json()
}

const ended = (s: Stage, id: string, status: RunSummary['status']) =>
  eventually(`${id} is ${status}`, async () => (await s.store.findRun('acme', id))?.status === status)

test('a busy session refuses a run, unless the run waits: then those that wait start in their order', async (t) => {
  const s = await stage(t)
  const gate = gated()
  s.runner.script = gate.script
  const { sessionId } = await busy(s)
  await gate.begun('first')
  for (const whenBusy of [undefined, 'reject'] as const) {
    const refused = await post(s, { prompt: 'no', sessionId, ...(whenBusy ? { whenBusy } : {}) })
    assert.deepEqual([refused.statusCode, refused.json().error], [409, 'session_busy'])
  }
  const accepted = []
  for (const prompt of ['second', 'third']) accepted.push(await post(s, { prompt, sessionId, whenBusy: 'enqueue' }))
  assert.deepEqual(
    accepted.map((answer) => [answer.statusCode, answer.json().status]),
    [
      [202, 'queued'],
      [202, 'queued'],
    ],
  )
  const [second, third] = accepted.map((answer) => answer.json().runId as string)
  const waiting = await s.kernel.listeners['conductor']!.inject({ url: '/api/runs?status=queued' })
  assert.deepEqual(
    waiting.json().map((run: RunSummary) => [run.runId, run.status]),
    [
      [third, 'queued'],
      [second, 'queued'],
    ],
  )
  const streamed = typesOf(s.dispatch.follow('acme', third!, 0, never))
  await gate.open('first')
  await gate.begun('second')
  assert.equal((await s.store.findRun('acme', third!))?.status, 'queued')
  await gate.open('second')
  await gate.open('third')
  await ended(s, third!, 'ok')
  assert.deepEqual(
    s.runner.executed.map((run) => run.prompt),
    ['first', 'second', 'third'],
  )
  assert.equal((await s.store.findRun('acme', second!))?.result, 'answer to second')
  assert.deepEqual(await streamed, ['progress', 'assistant', 'result'])
})

test('whenBusy changes nothing for a session that is free, and nothing without a session', async (t) => {
  const s = await stage(t)
  const first = await post(s, { prompt: 'x', whenBusy: 'interrupt' })
  assert.deepEqual([first.statusCode, first.json().status], [202, 'running'])
  await ended(s, first.json().runId, 'ok')
  const second = await post(s, { prompt: 'y', sessionId: first.json().sessionId, whenBusy: 'enqueue' })
  assert.deepEqual([second.statusCode, second.json().status], [202, 'running'])
  assert.equal((await post(s, { prompt: 'z', whenBusy: 'later' as 'reject' })).statusCode, 400)
  const elsewhere = await post(s, { prompt: 'z', sessionId: 'sess-nowhere', whenBusy: 'enqueue' })
  assert.equal(elsewhere.statusCode, 404)
})

test('the run after one that failed starts all the same', async (t) => {
  const s = await stage(t)
  let fail = (): void => {}
  const failing = new Promise<void>((resolve) => {
    fail = resolve
  })
  s.runner.script = async function* (run) {
    if (run.prompt !== 'first') return yield result('fine')
    await failing
    yield { type: 'error', code: 'model', message: 'no' }
  }
  const { sessionId, runId: first } = await busy(s)
  const next = await post(s, { prompt: 'next', sessionId, whenBusy: 'enqueue' })
  fail()
  await ended(s, next.json().runId, 'ok')
  assert.equal((await s.store.findRun('acme', first))?.status, 'error')
})

test('a run that waits is cancelled and terminated without a runner, its stream ends with its one event', async (t) => {
  const s = await stage(t)
  s.runner.script = endless
  const { sessionId } = await busy(s)
  const ids = [runId(), runId()]
  for (const id of ids) await post(s, { id, prompt: 'x', sessionId, whenBusy: 'enqueue' })
  const streamed = typesOf(s.dispatch.follow('acme', ids[0]!, 0, never))
  const api = s.kernel.listeners['conductor']!
  assert.equal((await api.inject({ method: 'DELETE', url: `/api/runs/${ids[0]}` })).statusCode, 204)
  assert.equal((await api.inject({ method: 'DELETE', url: `/api/runs/${ids[0]}` })).statusCode, 204)
  assert.deepEqual(await streamed, ['error'])
  assert.deepEqual((await api.inject({ method: 'POST', url: `/api/runs/${ids[1]}/terminate` })).json(), {
    runId: ids[1],
    found: true,
    cancelled: false,
    drained: false,
    claimStolen: true,
    durableUpdated: true,
    warnings: ['not_executing_here'],
  })
  for (const id of ids) assert.equal((await s.store.findRun('acme', id))?.status, 'cancelled')
  assert.equal(s.runner.executed.length, 1)
})

test('an interrupt ends the run under way, whichever conductor executes it, and starts before those that wait', async (t) => {
  for (const kv of [undefined, sharedKv()]) {
    const store = new MemoryRunStore()
    const options = { store, ...(kv ? { kv } : {}) }
    const [a, b] = [await stage(t, options), await stage(t, options)]
    a.runner.script = endless
    b.runner.script = endless
    const first = await busy(a)
    await eventually('the first run begins', () => a.runner.executed.length === 1)
    const { sessionId } = first
    const patient = (await post(a, { prompt: 'patient', sessionId, whenBusy: 'enqueue' })).json().runId
    const urgent = (await post(b, { prompt: 'urgent', sessionId, whenBusy: 'interrupt' })).json().runId
    const startedBy = () => [...a.runner.executed, ...b.runner.executed].map((run) => run.prompt)
    await eventually('the interrupt begins', () => startedBy().includes('urgent'))
    const gone = await store.findRun('acme', first.runId)
    assert.deepEqual([gone?.status, gone?.error?.code], ['cancelled', 'interrupted_by'])
    assert.ok(gone?.error?.message.includes(urgent))
    assert.equal(a.runner.aborted, 1, 'the runner of the interrupted run is told')
    assert.equal((await store.findRun('acme', patient))?.status, 'queued')
    await a.dispatch.cancel('acme', urgent)
    await eventually('the patient one begins', () => startedBy().includes('patient'))
    await b.dispatch.cancel('acme', patient)
    await ended(a, patient, 'cancelled')
  }
})

test('an interrupt does not wait for a run that does not listen longer than 2 seconds', async (t) => {
  const s = await stage(t)
  let release = (): void => {}
  const stalled = new Promise<void>((resolve) => {
    release = resolve
  })
  s.runner.script = async function* (run) {
    if (run.prompt === 'first') await stalled
    yield result(run.prompt)
  }
  const first = await busy(s)
  const second = await post(s, { prompt: 'second', sessionId: first.sessionId, whenBusy: 'interrupt' })
  await ended(s, second.json().runId, 'ok')
  release()
  assert.equal((await s.store.findRun('acme', first.runId))?.status, 'cancelled')
})

test('a cancel reaches the conductor that executes the run, and its runner is told', async (t) => {
  const store = new MemoryRunStore()
  const [a, b] = [await stage(t, { store }), await stage(t, { store })]
  a.runner.script = endless
  const first = await busy(a)
  await eventually('the run begins', () => a.runner.executed.length === 1)
  assert.deepEqual(
    (
      await b.kernel.listeners['conductor']!.inject({ method: 'POST', url: `/api/runs/${first.runId}/terminate` })
    ).json(),
    {
      runId: first.runId,
      found: true,
      cancelled: false,
      drained: true,
      claimStolen: false,
      durableUpdated: true,
      warnings: ['not_executing_here'],
    },
  )
  assert.equal(a.runner.aborted, 1)
})

/** A store that announces nothing to a conductor, as if that had died between the end of a run and the start of the next. */
const deaf = (store: RunStore): RunStore => meddling(store, { onWaiting() {} })

test('when the conductor that ended a run is gone, another one starts the next', async (t) => {
  const store = new MemoryRunStore()
  const gate = gated()
  const a = await stage(t, { store, wrap: deaf })
  const b = await stage(t, { store })
  a.runner.script = gate.script
  const { sessionId } = await busy(a)
  const next = await post(a, { prompt: 'next', sessionId, whenBusy: 'enqueue' })
  await gate.open('first')
  await ended(b, next.json().runId, 'ok')
  assert.equal(b.runner.executed[0]?.prompt, 'next')
})

test('a conductor that stops starts nothing new: what waits stays in line for the others', async (t) => {
  const store = new MemoryRunStore()
  const s = await stage(t, { store })
  s.runner.script = endless
  const { sessionId, runId: first } = await busy(s)
  const next = (await post(s, { prompt: 'next', sessionId, whenBusy: 'enqueue' })).json().runId
  await s.kernel.stop()
  assert.equal((await store.findRun('acme', first))?.status, 'interrupted')
  assert.equal((await store.findRun('acme', next))?.status, 'queued')
})

test('a run keeps its place in line while no runner could take it', async (t) => {
  const s = await stage(t)
  const gate = gated()
  s.runner.script = gate.script
  const { sessionId } = await busy(s)
  const next = (await post(s, { prompt: 'next', sessionId, whenBusy: 'enqueue' })).json().runId
  s.runner.away = true
  await gate.open('first')
  await eventually('the session is free', async () => (await s.store.getSession('acme', sessionId))?.status === 'idle')
  assert.equal((await s.store.findRun('acme', next))?.status, 'queued')
  s.runner.away = false
  // The next request finds the session as busy as before.
  const last = (await post(s, { prompt: 'last', sessionId, whenBusy: 'enqueue' })).json().runId
  await gate.open('next')
  await gate.open('last')
  await ended(s, last, 'ok')
  assert.equal((await s.store.findRun('acme', next))?.status, 'ok')
})

test('the line in front of a session is bounded: 429 queue_full', async (t) => {
  const s = await stage(t, { wrap: (store) => meddling(store, { enqueue: async () => ({ kind: 'full' }) }) })
  s.runner.script = endless
  const { sessionId } = await busy(s)
  const full = await post(s, { prompt: 'x', sessionId, whenBusy: 'enqueue' })
  assert.deepEqual([full.statusCode, full.json().error], [429, 'queue_full'])
})

test('a repeated id joins the run that waits, on both planes; with another task it is a conflict', async (t) => {
  const s = await stage(t)
  s.runner.script = endless
  const { sessionId } = await busy(s)
  const task = { id: runId(), profile: 'writer', prompt: 'x', sessionId, whenBusy: 'enqueue' } as const
  assert.equal((await post(s, task)).json().status, 'queued')
  assert.deepEqual((await post(s, task)).json().status, 'queued')
  assert.equal((await s.dispatch.start('acme', task, 0, never)).status, 'queued')
  const other = { ...task, prompt: 'y' }
  assert.equal((await post(s, other)).statusCode, 409)
  await assert.rejects(s.dispatch.start('acme', other, 0, never), (error: AppError) => error.code === 'conflict')
})

test('a new chat whose drawn session id is in use draws another one; it is not told that it is busy', async (t) => {
  const drawn: string[] = []
  const s = await stage(t, {
    wrap: (inner) =>
      meddling(inner, {
        async start(run) {
          // Somebody else drew the first two.
          const other = { ...run, runId: runId(), task: { profile: 'writer', prompt: 'earlier' } }
          if (drawn.push(run.sessionId) < 3) await inner.start(other)
          return inner.start(run)
        },
      }),
  })
  const [id, publicRunId, conversationId] = [runId(), 'prun_1', 'conv_1']
  const chat = { publicRunId, conversationId, publishedId: 'agent_1', continued: false }
  const { sessionId } = await s.dispatch.start('acme', { id, profile: 'writer', prompt: 'Hello', chat }, 0, never)
  assert.equal(new Set(drawn).size, 3)
  assert.equal(sessionId, drawn[2])
})
