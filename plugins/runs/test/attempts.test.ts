import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { Orphan, RunStore } from '#contracts/run-store'
import type { LogChunk } from '#contracts/run-event'
import {
  endless,
  eventually,
  meddling,
  profileNamed,
  result,
  runId,
  type Script,
  stage,
  type Stage,
  text,
  untilAborted,
} from './stage.ts'
import { MemoryRunStore } from '../memory/store.ts'

const never = new AbortController().signal
const retrying = (limits: Profile['limits'] = {}): Profile => ({ ...profileNamed('writer', limits), onCrash: 'retry' })

type Line = Record<string, unknown> & { type: string; seq: number }
async function collect(chunks: AsyncIterable<LogChunk>): Promise<Line[]> {
  let lines = ''
  for await (const chunk of chunks) lines += chunk.lines.toString()
  return lines
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Line)
}

/** Each attempt follows its own script; the last one serves all further attempts. */
async function play(s: Stage, ...scripts: Script[]) {
  let attempt = 0
  const before = s.runner.executed.length
  s.runner.script = (run, signal) => scripts[Math.min(attempt++, scripts.length - 1)]!(run, signal)
  const id = runId()
  const { events } = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id }, 0, never)
  const seen = await collect(events)
  assert.deepEqual(
    seen.map(({ seq }) => seq),
    seen.map((_, i) => i + 1),
  )
  assert.equal(seen.filter(({ type }) => type === 'result' || type === 'error').length, 1)
  assert.deepEqual(await collect(s.dispatch.follow('acme', id, 0, never)), seen)
  return { seen, run: (await s.store.findRun('acme', id))!, bodies: s.runner.executed.slice(before) }
}

const call = (id: string, name: string) => ({ type: 'tool_call', id, name, arguments: { of: id } }) as const
const answered = (id: string, name: string) => ({ type: 'tool_result', id, name, ok: true, content: `${id}!` }) as const
const usage = { type: 'usage', inputTokens: 5, outputTokens: 1, model: 'demo' } as const

test('a run whose runner goes away goes on behind what is finished, under the same id, and meters all attempts', async (t) => {
  const s = await stage(t, { profiles: [retrying()] })
  const { seen, run, bodies } = await play(
    s,
    async function* () {
      yield text('Let me ')
      yield text('look.')
      yield usage
      yield call('a', 'look')
      yield call('b', 'look')
      yield answered('a', 'look')
      yield text('\n\nI s')
    },
    async function* () {
      yield answered('b', 'look')
      yield usage
      yield text('\n\nI see.')
      yield result('Let me look.\n\nI see.')
    },
  )
  assert.deepEqual([run.status, run.attempt, run.result], ['ok', 2, 'Let me look.\n\nI see.'])
  assert.deepEqual([run.usage?.inputTokens, run.usage?.outputTokens], [10, 2])
  const [first, second] = bodies
  assert.equal(first!.attempt, undefined)
  assert.equal(second!.attempt, 2)
  assert.deepEqual(second!.replay, [
    { type: 'assistant', text: 'Let me look.', delta: true },
    call('a', 'look'),
    call('b', 'look'),
    answered('a', 'look'),
  ])
  const retry = seen.find(({ type, stage: at }) => type === 'progress' && at === 'retrying')!
  assert.equal(retry['attempt'], 2)
  assert.equal(retry['supersedes'], seen.find((line) => line['text'] === '\n\nI s')!.seq)
  assert.equal(second!.firstSeq, retry.seq + 1)
  assert.ok(second!.timeoutMs < first!.timeoutMs)
})

test('what a third attempt is sent is what the first two finished; a runtime that repeats the turn is not sent it twice', async (t) => {
  const s = await stage(t, { profiles: [retrying()] })
  const dies = (...events: (ReturnType<typeof call> | ReturnType<typeof answered>)[]): Script =>
    async function* () {
      yield text('cut ')
      yield* events
      yield text('off')
    }
  const done: Script = async function* () {
    yield result('done')
  }
  const goesOn = await play(s, dies(call('a', 'x'), answered('a', 'x')), dies(call('b', 'x'), answered('b', 'x')), done)
  const types = (body: (typeof goesOn.bodies)[number]) =>
    body.replay!.map((item) => (item.type === 'assistant' ? item.text : `${item.type} ${item.id}`))
  assert.deepEqual(types(goesOn.bodies[2]!), [
    'cut ',
    'tool_call a',
    'tool_result a',
    'cut ',
    'tool_call b',
    'tool_result b',
  ])
  const same = { type: 'tool_call', name: 'x', arguments: {} } as const
  const said = { type: 'tool_result', name: 'x', ok: true, content: 'said' } as const
  const repeats = await play(
    s,
    async function* () {
      yield { ...same, id: '1' }
      yield { ...said, id: '1' }
      yield { ...same, id: '2', name: 'y' }
      yield { ...said, id: '2', name: 'y' }
    },
    async function* () {
      yield { type: 'progress', stage: 'repeated', supersedes: 1 }
      yield { ...same, id: '3' }
      yield { ...said, id: '3' }
    },
    done,
  )
  assert.deepEqual(types(repeats.bodies[2]!), ['tool_call 3', 'tool_result 3', 'tool_call 2', 'tool_result 2'])
})

test('an answer that did not fit its form is not sent to the next attempt; what was done for it is', async (t) => {
  const s = await stage(t, { profiles: [retrying()] })
  const { seen, bodies } = await play(
    s,
    async function* () {
      yield text('Let me look.')
      yield call('a', 'look')
      yield answered('a', 'look')
      yield text('\n\nnot JSON')
      yield { type: 'progress', stage: 'output_invalid', supersedes: 1 }
      yield text('{"half":')
    },
    async function* () {
      yield text('{}')
      yield result('{}')
    },
  )
  assert.deepEqual(bodies[1]!.replay, [call('a', 'look'), answered('a', 'look')])
  const retry = seen.find(({ stage: at }) => at === 'retrying')!
  assert.equal(retry['supersedes'], seen.find((line) => line['text'] === '{"half":')!.seq)
})

const lostBy = (code: string): Script =>
  async function* () {
    yield { type: 'error', code, message: 'Gone.', retryable: true }
  }

test('a run that is lost again and again ends as it was lost, and says how often it was tried', async (t) => {
  const s = await stage(t, { profiles: [retrying({ maxAttempts: 2 })] })
  for (const code of ['sidecar_lost', 'sidecar_unreachable', 'runner_stopping', 'interrupted']) {
    const { seen, run, bodies } = await play(s, lostBy(code))
    assert.equal(bodies.length, 2, code)
    assert.deepEqual([run.status, run.attempt, run.error?.code], ['error', 2, code])
    assert.match(run.error!.message, /^Gone\. It was tried 2 times\.$/)
    assert.deepEqual([seen.at(-1)!['message'], seen.at(-1)!['retryable']], [run.error!.message, true])
  }
  s.runner.onExecute = () => {
    throw new AppError('runner_unreachable', 503, { message: 'Away.' })
  }
  const { run } = await play(s, endless)
  assert.deepEqual([run.attempt, run.error?.code], [2, 'runner_unreachable'])
})

test('what a runtime says itself, a refusal and a profile that does not ask for it are never tried again', async (t) => {
  const s = await stage(t, { profiles: [retrying()] })
  for (const code of ['model_error', 'max_steps', 'timeout', 'cancelled', 'runtime_error']) {
    const { run, bodies } = await play(s, lostBy(code))
    assert.deepEqual([bodies.length, run.error?.code, run.error?.message], [1, code, 'Gone.'])
  }
  s.runner.onExecute = () => {
    throw new AppError('attempt_superseded', 409, { message: 'No.' })
  }
  assert.equal((await play(s, endless)).bodies.length, 1)
  const interrupting = await stage(t)
  const { run, bodies } = await play(interrupting, lostBy('sidecar_lost'))
  assert.deepEqual([bodies.length, run.attempt, run.error?.message], [1, 1, 'Gone.'])
})

test('the deadline is that of the first attempt: a run with no time left is not tried again', async (t) => {
  const s = await stage(t, { profiles: [retrying({ timeoutSeconds: 1, maxAttempts: 10 })] })
  const { run, bodies } = await play(s, lostBy('sidecar_lost'))
  assert.equal(bodies.length, 2, 'half a second later, and not two seconds after that')
  assert.equal(run.error?.code, 'sidecar_lost')
})

test('a run that is cancelled while it waits for its next attempt is cancelled, and begins no other one', async (t) => {
  const s = await stage(t, { profiles: [retrying()] })
  s.runner.script = lostBy('sidecar_lost')
  const id = runId()
  const { events } = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id }, 0, never)
  let cancelling: Promise<void> | undefined
  let last = ''
  for await (const chunk of events) {
    last = chunk.lines.toString()
    if (last.includes('"stage":"retrying"')) cancelling = s.dispatch.cancel('acme', id)
  }
  await cancelling
  assert.match(last, /"code":"cancelled"/)
  assert.equal((await s.store.findRun('acme', id))?.status, 'cancelled')
  assert.equal(s.runner.executed.length, 1)
})

test('a session that is away for the moment does not refuse a run that may be tried again', async (t) => {
  const s = await stage(t, { profiles: [retrying()] })
  const done: Script = async function* () {
    yield result('done')
  }
  const { run } = await play(s, done)
  let refusals = 1
  s.runner.onExecute = () => {
    if (refusals-- > 0) throw new AppError('runner_unreachable', 503)
  }
  const id = runId()
  const task = { profile: 'writer', prompt: 'x', id, sessionId: run.sessionId }
  const { events } = await s.dispatch.start('acme', task, 0, never)
  assert.equal((await collect(events)).at(-1)!.type, 'result')
})

/** A store in memory that lets a test fence its process and hand over its runs, as a database would. */
function shared(inner: RunStore) {
  const fenced: (() => void)[] = []
  let adopt: ((orphan: Orphan) => void) | undefined
  const store = meddling(inner, {
    onFenced: (listener) => void fenced.push(listener),
    onOrphan: (adopter) => {
      adopt = (orphan) => adopter.wants(orphan) === true && adopter.adopt(orphan)
    },
  })
  return { store, fence: () => fenced.forEach((listener) => listener()), adopt: (orphan: Orphan) => adopt!(orphan) }
}

test('a fenced process leaves its run as it is; the next one goes on with it, and watchers of the first see its end', async (t) => {
  const inner = new MemoryRunStore()
  const [one, two] = [shared(inner), shared(inner)]
  const profiles = [retrying()]
  const [a, b] = [await stage(t, { store: one.store, profiles }), await stage(t, { store: two.store, profiles })]
  a.runner.script = async function* (_run, signal) {
    yield usage
    yield call('a', 'look')
    yield answered('a', 'look')
    yield text('half')
    await untilAborted(signal)
  }
  const id = runId()
  const { events, sessionId } = await a.dispatch.start('acme', { profile: 'writer', prompt: 'x', id }, 0, never)
  const watching = collect(events)
  await eventually('the run is under way', async () => {
    const log = await inner.readLog('acme', id, 0)
    return log!.chunks.some(({ lines }) => lines.includes('half'))
  })
  one.fence()
  await eventually('its runner is told', () => a.runner.aborted === 1)
  assert.equal((await inner.findRun('acme', id))!.status, 'running')
  b.runner.script = async function* () {
    yield usage
    yield result('whole')
  }
  const session = (await inner.findSession('acme', sessionId))!
  const claim = { tenantId: 'acme', sessionId, runId: id, epoch: 1 }
  const task = { id, sessionId, profile: 'writer', prompt: 'x' }
  two.adopt({ claim, task, session, attempt: 1, handedOver: false, elapsedMs: 20_000 })
  const seen = await watching
  assert.equal(seen.at(-1)!.type, 'result')
  assert.deepEqual(
    seen.map(({ seq }) => seq),
    seen.map((_, i) => i + 1),
  )
  const run = (await inner.findRun('acme', id))!
  assert.deepEqual([run.status, run.attempt, run.usage?.inputTokens], ['ok', 2, 10])
  const [body] = b.runner.executed
  assert.ok(body!.timeoutMs <= 600_000 - 20_000, 'the time before counts')
  assert.deepEqual(body!.replay, [call('a', 'look'), answered('a', 'look')])
  // What still waits to be saved is saved when the process stops.
  await a.kernel.stop()
  assert.equal(a.runner.exported.length, 0, 'what the first runner has is half a turn')
})

test('what an orphan has delegated before counts for what it may still cost', async (t) => {
  const inner = new MemoryRunStore()
  const before = { delegatedCents: async () => new Map([['child', 6]]) }
  const { store, adopt } = shared(meddling(inner, before))
  const profile = retrying({ maxCostCents: 10 })
  const { runner } = await stage(t, { store, profiles: [profile] })
  runner.script = async function* (_run, signal) {
    yield { ...usage, costCents: 4.5 }
    await untilAborted(signal)
  }
  const id = runId()
  const task = { id, sessionId: 'sess-1', profile: 'writer', prompt: 'x' }
  const run = { tenantId: 'acme', runId: id, sessionId: 'sess-1' }
  const started = await inner.start({ ...run, task, create: { profile } })
  assert.ok(started.kind === 'started')
  const session = (await inner.findSession('acme', 'sess-1'))!
  adopt({ claim: started.claim, task, session, attempt: 1, handedOver: false, elapsedMs: 0 })
  await eventually('it is over', async () => (await inner.findRun('acme', id))!.status !== 'running')
  assert.equal((await inner.findRun('acme', id))!.error?.code, 'budget_exceeded')
})

test('an orphan that is cancelled at once ends behind what its log holds, with what it has used', async (t) => {
  const inner = new MemoryRunStore()
  const [one, two] = [shared(inner), shared(inner)]
  const profiles = [retrying()]
  const [a, b] = [await stage(t, { store: one.store, profiles }), await stage(t, { store: two.store, profiles })]
  a.runner.script = async function* (_run, signal) {
    yield usage
    yield text('half')
    await untilAborted(signal)
  }
  const id = runId()
  const { sessionId } = await a.dispatch.start('acme', { profile: 'writer', prompt: 'x', id }, 0, never)
  await eventually('its words are on record', async () =>
    (await inner.readLog('acme', id, 0))!.chunks.some(({ lines }) => lines.includes('half')),
  )
  one.fence()
  await eventually('its runner is told', () => a.runner.aborted === 1)
  const session = (await inner.findSession('acme', sessionId))!
  const claim = { tenantId: 'acme', sessionId, runId: id, epoch: 1 }
  two.adopt({
    claim,
    task: { id, sessionId, profile: 'writer', prompt: 'x' },
    session,
    attempt: 1,
    handedOver: false,
    elapsedMs: 0,
  })
  const following = collect(b.dispatch.follow('acme', id, 0, never))
  await b.dispatch.cancel('acme', id)
  const seen = await following
  assert.deepEqual(
    seen.map(({ seq, type }) => [seq, type]),
    [
      [1, 'progress'],
      [2, 'usage'],
      [3, 'assistant'],
      [4, 'error'],
    ],
  )
  const run = (await inner.findRun('acme', id))!
  assert.deepEqual([run.status, run.usage?.inputTokens], ['cancelled', 5])
  assert.equal(b.runner.executed.length, 0)
})

test('a tool call and its result are stored at once where they must not happen twice, and in their turn elsewhere', async (t) => {
  for (const onCrash of ['retry', 'interrupt'] as const) {
    const s = await stage(t, { profiles: [{ ...profileNamed('writer'), onCrash }] })
    s.runner.script = async function* (_run, signal) {
      yield call('a', 'look')
      yield answered('a', 'look')
      await untilAborted(signal)
    }
    const id = runId()
    // No write happens because of a timer.
    t.mock.timers.enable({ apis: ['setTimeout'] })
    await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id }, 0, never)
    let stored = ''
    for (let turn = 0; turn < 200 && !stored.includes('a!'); turn++) {
      await new Promise((resolve) => setImmediate(resolve))
      stored = (await s.store.readLog('acme', id, 0))!.chunks.map(({ lines }) => lines.toString()).join('')
    }
    t.mock.timers.reset()
    assert.equal(stored.includes('a!'), onCrash === 'retry')
    await s.dispatch.cancel('acme', id)
  }
})

test('an orphan that has no time left is not wanted; one that was begun often enough is read on, but not begun again', async (t) => {
  const inner = new MemoryRunStore()
  const answers: unknown[] = []
  const store = meddling(inner, {
    onOrphan(adopter) {
      const session = { id: 's', profile: retrying(), status: 'running', stateRev: 0 } as Orphan['session']
      const orphan = { claim: {}, task: {}, session, attempt: 3, elapsedMs: 1_000 } as Orphan
      answers.push(adopter.wants(orphan))
      answers.push(adopter.wants({ ...orphan, attempt: 1, elapsedMs: 600_000 }))
      answers.push(adopter.wants({ ...orphan, elapsedMs: 600_000 }))
    },
  })
  await stage(t, { store })
  const message = 'The server that executed this run stopped before the run ended.'
  assert.deepEqual(answers, [
    true,
    { code: 'interrupted', message },
    { code: 'interrupted', message: `${message} It was tried 3 times.` },
  ])
})
