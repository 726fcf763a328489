import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import type { LogChunk } from '#contracts/run-event'
import type { RunSummary } from '#contracts/runs'
import {
  endless,
  eventually,
  meddling,
  profileNamed,
  result,
  runId,
  type Script,
  sharedKv,
  stage,
  type Stage,
  text,
  untilAborted,
} from './stage.ts'
import type { RunStore } from '#contracts/run-store'
import { MemoryRunStore } from '../memory/store.ts'

const never = new AbortController().signal

async function collect(
  chunks: AsyncIterable<LogChunk>,
): Promise<{ type: string; seq: number; code?: string; text?: string }[]> {
  let lines = ''
  for await (const chunk of chunks) lines += chunk.lines.toString()
  return lines
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
}

/** Runs a script to its end: what a watcher saw, and what was stored. */
async function play(s: Stage, script: Script, task: { sessionId?: string; profile?: string } = {}) {
  s.runner.script = script
  const id = runId()
  const started = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id, ...task }, 0, never)
  const seen = await collect(started.events)
  const run = (await s.store.findRun('acme', id))!
  const stored = await collect(s.dispatch.follow('acme', id, 0, never))
  return { seen, stored, run, sessionId: started.sessionId, id }
}

const codeOf = (run: RunSummary): string | undefined => run.error?.code

test('whatever the runner does to its stream, a run ends with exactly one terminal event', async (t) => {
  const s = await stage(t)
  const cut: Script = async function* () {
    yield text('half')
  }
  const silent: Script = async function* () {}
  const throwing: Script = async function* () {
    yield text('half')
    throw new Error('socket hang up: secret-host:1234')
  }
  const garbage: Script = async function* () {
    yield text('half')
    yield Buffer.from('{"type":"assi\n')
  }
  const badResult: Script = async function* () {
    yield Buffer.from('{"type":"result","text":\n')
  }
  const misnumbered: Script = async function* (run) {
    yield Buffer.from(
      `{"type":"assistant","runId":"${run.runId}","sessionId":"${run.sessionId}","seq":9,"at":"x","text":"a","delta":true}\n`,
    )
  }
  const failing: Script = async function* () {
    yield { type: 'error', code: 'model', message: 'The model is out of tea.' }
    yield text('afterwards')
    yield result('too late')
  }
  const twice: Script = async function* () {
    yield result('one')
    yield result('two')
  }
  const cases: [Script, string, string | undefined][] = [
    [cut, 'error', 'runner_lost'],
    [silent, 'error', 'runner_lost'],
    [throwing, 'error', 'runner_lost'],
    [garbage, 'error', 'runner_protocol'],
    [badResult, 'error', 'runner_protocol'],
    [misnumbered, 'error', 'runner_protocol'],
    [failing, 'error', 'model'],
    [twice, 'ok', undefined],
  ]
  for (const [script, status, code] of cases) {
    const { seen, stored, run, sessionId } = await play(s, script)
    assert.equal(run.status, status)
    assert.equal(codeOf(run), code)
    assert.deepEqual(seen, stored)
    assert.equal(seen.filter((e) => e.type === 'result' || e.type === 'error').length, 1)
    assert.deepEqual(
      seen.map((e) => e.seq),
      seen.map((_, i) => i + 1),
    )
    assert.ok(!JSON.stringify(seen).includes('secret-host'))
    assert.equal((await s.store.getSession('acme', sessionId))?.status, status === 'ok' ? 'idle' : 'errored')
  }
})

test('a runner that cannot be reached ends the run as runner_unreachable', async (t) => {
  const s = await stage(t)
  s.runner.onExecute = () => {
    throw new AppError('runner_unreachable', 503, { message: 'The runner cannot be reached; try again.' })
  }
  const { seen, run } = await play(s, endless)
  assert.equal(codeOf(run), 'runner_unreachable')
  assert.deepEqual(
    seen.map((e) => e.type),
    ['progress', 'error'],
  )
})

test('a run past the limit of its profile is ended as timed out and its runner told', async (t) => {
  const s = await stage(t, {
    profiles: [profileNamed('writer', { timeoutSeconds: 1 })],
    config: { deadlineGrace: '0s' },
  })
  const { run, seen } = await play(s, endless)
  assert.equal(s.runner.executed[0]?.timeoutMs, 1_000)
  assert.equal(codeOf(run), 'timeout')
  assert.equal(run.status, 'error')
  assert.equal(seen.at(-1)?.code, 'timeout')
  assert.equal(s.runner.aborted, 1)
})

/** Its runtime keeps archives; that of the other profiles is restored from the log. */
const archived = { ...profileNamed('writer'), runtime: 'runtime_a' }

test('a session that its runner forgot is restored from the row and its bundle, once, before anything streams', async (t) => {
  const s = await stage(t, { profiles: [archived] })
  const { sessionId } = await play(s, async function* () {
    yield result('first')
  })
  const saved = { bytes: Buffer.from('saved'), contentType: 'application/json' }
  assert.equal(await s.store.saveState('acme', sessionId, saved, { runner: 'aaaaaaaa', epoch: 1 }), 5)
  s.runner.known.clear()
  s.runner.onExecute = (run) => {
    if (!run.create && !s.runner.known.has(run.sessionId)) throw new AppError('unknown_session', 404)
  }
  const { run } = await play(
    s,
    async function* () {
      yield result('again')
    },
    { sessionId },
  )
  assert.equal(run.result, 'again')
  assert.equal(s.runner.hydrated.length, 1)
  assert.equal(Buffer.from(s.runner.hydrated[0]!.bundle!.bytes).toString(), 'saved')
  s.runner.known.clear()
  s.runner.onHydrate = () => {
    throw new Error('connection refused')
  }
  const id = runId()
  await assert.rejects(
    s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id, sessionId }, 0, never),
    (e: AppError) => e.status === 503 && e.code === 'hydration_failed',
  )
  assert.equal(await s.store.findRun('acme', id), undefined, 'a start that failed burns nothing')
  assert.equal((await s.store.getSession('acme', sessionId))?.status, 'idle')
})

test('a runner that still holds the session for an aborted run is asked again', async (t) => {
  const s = await stage(t)
  const { sessionId } = await play(s, async function* () {
    yield result('first')
  })
  let refusals = 3
  s.runner.onExecute = () => {
    if (refusals-- > 0) throw new AppError('session_busy', 409)
  }
  const { run } = await play(
    s,
    async function* () {
      yield result('second')
    },
    { sessionId },
  )
  assert.equal(run.result, 'second')
})

test('terminate drains a run that listens, and steals one that does not: its late result changes nothing', async (t) => {
  const s = await stage(t)
  s.runner.script = endless
  const url = (id: string) => `/api/runs/${id}/terminate`
  const terminate = (id: string) => s.kernel.listeners['conductor']!.inject({ method: 'POST', url: url(id) })
  const first = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id: runId() }, 0, never)
  assert.deepEqual((await terminate(first.runId)).json(), {
    runId: first.runId,
    found: true,
    cancelled: true,
    drained: true,
    claimStolen: false,
    durableUpdated: true,
    warnings: [],
  })
  let release = (): void => {}
  const stalled = new Promise<void>((resolve) => {
    release = resolve
  })
  s.runner.script = async function* () {
    yield text('deaf')
    await stalled
    yield result('late')
  }
  const second = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id: runId() }, 0, never)
  const watching = collect(second.events)
  assert.deepEqual((await terminate(second.runId)).json(), {
    runId: second.runId,
    found: true,
    cancelled: true,
    drained: false,
    claimStolen: true,
    durableUpdated: true,
    warnings: ['drain_timeout'],
  })
  const { at: _, ...last } = (await watching).at(-1) as Record<string, unknown>
  const { runId: id, sessionId } = second
  const message = 'The run was cancelled.'
  assert.deepEqual(last, { type: 'error', runId: id, sessionId, seq: 3, code: 'cancelled', message })
  release()
  assert.equal((await s.store.findRun('acme', second.runId))?.status, 'cancelled')
  assert.equal((await s.store.getSession('acme', second.sessionId))?.status, 'idle')
  assert.deepEqual((await terminate(second.runId)).json().warnings, ['not_executing_here', 'already_finished'])
  const absent = await terminate('nobody')
  assert.equal(absent.statusCode, 200)
  assert.equal(absent.json().found, false)
  assert.deepEqual(absent.json().warnings, ['not_executing_here', 'unknown_run'])
  assert.equal((await terminate('not%20an%20id')).statusCode, 400)
})

test('a thousand watchers that attach at any moment and any event each see exactly the log', async (t) => {
  const s = await stage(t)
  const total = 400
  s.runner.script = async function* () {
    for (let i = 0; i < total; i++) {
      yield text(`word ${i} `)
      if (i % 3 === 0) await new Promise((resolve) => setImmediate(resolve))
    }
    yield result('all of it')
  }
  const id = runId()
  const { events } = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id }, 0, never)
  const bytes = async (after: number): Promise<string> => {
    let seen = ''
    for await (const chunk of s.dispatch.follow('acme', id, after, never)) seen += chunk.lines.toString()
    return seen
  }
  const watchers: { after: number; seen: Promise<string> }[] = []
  const attach = (after: number): void => void watchers.push({ after, seen: bytes(after) })
  for await (const chunk of events) {
    for (let i = 0; i < 3 && watchers.length < 900; i++) attach(Math.floor(Math.random() * (chunk.firstSeq + 5)))
  }
  while (watchers.length < 1_000) attach(Math.floor(Math.random() * total))
  const log = (await bytes(0)).split('\n')
  assert.equal(log.length, total + 3)
  for (const { after, seen } of watchers) assert.equal(await seen, log.slice(after).join('\n'))
})

test('a slow store stops the run from being read from its runner, and nothing is lost', async (t) => {
  let open = (): void => {}
  const gate = new Promise<void>((resolve) => {
    open = resolve
  })
  const s = await stage(t, {
    wrap: (inner) =>
      meddling(inner, {
        append: async (claim, chunk) => {
          await gate
          return inner.append(claim, chunk)
        },
      }),
  })
  let pulled = 0
  const total = 200
  s.runner.script = async function* () {
    for (; pulled < total; pulled++) yield text('x'.repeat(10_000))
    yield result('done')
  }
  const { events, runId: id } = await s.dispatch.start(
    'acme',
    { profile: 'writer', prompt: 'x', id: runId() },
    0,
    never,
  )
  const watching = collect(events)
  await eventually('the run waits', () => pulled > 20)
  await new Promise((resolve) => setImmediate(resolve))
  assert.ok(pulled < 60, `${pulled} chunks of 10 kB were taken while nothing was stored`)
  open()
  assert.equal((await watching).length, total + 2)
  assert.equal((await collect(s.dispatch.follow('acme', id, 0, never))).length, total + 2)
})

test('a store that fails is tried again until it has everything', async (t) => {
  let failures = 2
  const s = await stage(t, {
    wrap: (inner) =>
      meddling(inner, {
        finish: async (end) => {
          if (failures-- > 0) throw new AppError('unavailable', 503)
          return inner.finish(end)
        },
      }),
  })
  const { run, seen, stored } = await play(s, async function* () {
    yield result('at last')
  })
  assert.equal(run.result, 'at last')
  assert.deepEqual(seen, stored)
})

test('nobody sees the terminal event before it is durable', async (t) => {
  let durable = false
  let open = (): void => {}
  const gate = new Promise<void>((resolve) => {
    open = resolve
  })
  const s = await stage(t, {
    wrap: (inner) =>
      meddling(inner, {
        finish: async (end) => {
          await gate
          const done = await inner.finish(end)
          durable = true
          return done
        },
      }),
  })
  const { events } = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id: runId() }, 0, never)
  for await (const chunk of events) {
    if (chunk.lines.includes('"usage"')) setImmediate(open)
    if (chunk.lines.includes('"type":"result"')) assert.ok(durable)
  }
  assert.ok(durable)
})

test('any conductor follows and cancels the run of another, woken through Redis or by looking', async (t) => {
  for (const kv of [undefined, sharedKv()]) {
    const store = new MemoryRunStore()
    const options = { store, ...(kv ? { kv } : {}) }
    const [a, b] = [await stage(t, options), await stage(t, options)]
    a.runner.script = endless
    const id = runId()
    const { events } = await a.dispatch.start('acme', { profile: 'writer', prompt: 'x', id }, 0, never)
    const [here, there] = [collect(events), collect(b.dispatch.follow('acme', id, 0, never))]
    await b.dispatch.cancel('acme', id)
    const run = await b.dispatch.find('acme', id)
    assert.equal(run?.status, 'cancelled')
    assert.equal((await there).at(-1)?.code, 'cancelled')
    // Without Redis the owner finds out from its next write; here it has nothing to write, so its own watcher asks it.
    if (kv) assert.deepEqual(await here, await there)
    else await a.dispatch.cancel('acme', id)
    assert.equal((await here).at(-1)?.code, 'cancelled')
  }
})

test('a run whose claim was taken is given up, and its watchers end with what the store says', async (t) => {
  const s = await stage(t)
  let talk = (): void => {}
  const quiet = new Promise<void>((resolve) => {
    talk = resolve
  })
  s.runner.script = async function* (_run, signal) {
    yield text('one')
    await quiet
    yield text('two')
    await untilAborted(signal)
  }
  const { events, runId: id } = await s.dispatch.start(
    'acme',
    { profile: 'writer', prompt: 'x', id: runId() },
    0,
    never,
  )
  const watching = collect(events)
  await s.store.steal('acme', id, 'interrupted', { code: 'interrupted', message: 'swept' })
  talk()
  assert.equal((await watching).at(-1)?.code, 'interrupted')
  await eventually('the runner is told', () => s.runner.aborted === 1)
})

test('a repeated start with the same id and task joins the run, another task is a conflict', async (t) => {
  const s = await stage(t)
  const task = { profile: 'writer', prompt: 'x', id: runId() }
  const [a, b] = await Promise.all([s.dispatch.start('acme', task, 0, never), s.dispatch.start('acme', task, 0, never)])
  assert.equal(a.sessionId, b.sessionId)
  assert.deepEqual(await collect(a.events), await collect(b.events))
  assert.equal(s.runner.executed.length, 1)
  const other = { ...task, prompt: 'y' }
  await assert.rejects(s.dispatch.start('acme', other, 0, never), (e: AppError) => e.code === 'conflict')
})

test('a watcher that leaves, even all of them, does not end the run', async (t) => {
  const s = await stage(t)
  let go = (): void => {}
  const held = new Promise<void>((resolve) => {
    go = resolve
  })
  s.runner.script = async function* () {
    yield text('one')
    await held
    yield result('done')
  }
  const leaving = new AbortController()
  const task = { profile: 'writer', prompt: 'x', id: runId() }
  const { events } = await s.dispatch.start('acme', task, 0, leaving.signal)
  for await (const chunk of events) if (chunk.lines.includes('one')) leaving.abort()
  go()
  await eventually('the run ends', async () => (await s.store.findRun('acme', task.id))?.status === 'ok')
  assert.equal(s.runner.aborted, 0)
})

test('a graceful stop lets runs end, interrupts the rest and saves the sessions that rest', async (t) => {
  const store = new MemoryRunStore()
  const s = await stage(t, { store, profiles: [archived] })
  const rested = await play(s, async function* () {
    yield result('done')
  })
  s.runner.script = endless
  const { runId: id } = await s.dispatch.start('acme', { profile: 'writer', prompt: 'x', id: runId() }, 0, never)
  await s.kernel.stop()
  assert.equal((await store.findRun('acme', id))?.status, 'interrupted')
  assert.ok(s.runner.exported.includes(rested.sessionId))
  assert.equal((await store.findSession('acme', rested.sessionId))?.stateRev, 1)
  await assert.rejects(s.dispatch.ping())
})

test('what a conductor has when it stops is left to another one, and so is a run whose start was under way', async (t) => {
  const handed: string[] = []
  const asked: string[] = []
  const claimed = Promise.withResolvers<void>()
  const wrap = (store: RunStore): RunStore =>
    meddling(store, {
      async start(run) {
        const outcome = await store.start(run)
        asked.push(run.task.prompt)
        if (run.task.prompt === 'late') await claimed.promise
        return outcome
      },
      retreat: async () => true,
      handOver: async ({ runId: id }) => handed.push(id) > 0,
    })
  const s = await stage(t, { wrap, config: { drain: '20s' } })
  s.runner.script = endless
  const start = (prompt: string, id: string) => s.dispatch.start('acme', { profile: 'writer', prompt, id }, 0, never)
  const [early, late] = [runId(), runId()]
  await start('early', early)
  const starting = start('late', late)
  await eventually('it is claimed', () => asked.includes('late'))
  const stopped = s.kernel.stop()
  await eventually('what is there is handed over', () => handed.length === 1)
  await assert.rejects(start('too late', runId()), { status: 503, retryable: true })
  claimed.resolve()
  await starting
  await stopped
  assert.deepEqual(handed, [early, late])
  assert.equal(s.runner.aborted, 2)
})

test('a session whose runtime is restored from the log is given its turns, those of failed runs too', async (t) => {
  const s = await stage(t)
  const { sessionId } = await play(s, async function* () {
    yield text('Let me look.')
    yield { type: 'tool_call', id: 'c1', name: 'look', arguments: { at: 1 } }
    yield { type: 'tool_result', id: 'c1', name: 'look', ok: true, content: 'found' }
    yield text('Found it.')
    yield result('Found it.')
  })
  const failed: Script = async function* () {
    yield text('half')
    yield { type: 'error', code: 'model_error', message: 'no more' }
  }
  await play(s, failed, { sessionId })
  s.runner.known.clear()
  s.runner.onExecute = (run) => {
    if (!run.create && !s.runner.known.has(run.sessionId)) throw new AppError('unknown_session', 404)
  }
  const answered: Script = async function* () {
    yield result('again')
  }
  await play(s, answered, { sessionId })
  const { bytes, contentType } = s.runner.hydrated[0]!.bundle!
  assert.equal(contentType, 'application/vnd.agent-orc.turns+json')
  const { turns } = JSON.parse(Buffer.from(bytes).toString()) as { turns: Record<string, unknown>[] }
  assert.deepEqual(
    turns.map((turn) => ({ ...turn, runId: undefined })),
    [
      {
        runId: undefined,
        prompt: 'x',
        replay: [
          { type: 'assistant', text: 'Let me look.', delta: true },
          { type: 'tool_call', id: 'c1', name: 'look', arguments: { at: 1 } },
          { type: 'tool_result', id: 'c1', name: 'look', ok: true, content: 'found' },
          { type: 'assistant', text: 'Found it.', delta: true },
        ],
      },
      { runId: undefined, prompt: 'x', replay: [{ type: 'assistant', text: 'half', delta: true }], error: true },
    ],
  )
})

test('a start that every runner refuses leaves nothing, and the same id is a run when one is there', async (t) => {
  const s = await stage(t)
  const task = { profile: 'writer', prompt: 'x', id: runId() }
  const refused = { code: 'runner_unreachable', status: 503, retryable: true }
  s.runner.onExecute = () => {
    throw new AppError('runner_unreachable', 503, { retryable: true })
  }
  const both = await Promise.allSettled([
    s.dispatch.start('acme', task, 0, never),
    s.dispatch.start('acme', task, 0, never),
  ])
  for (const outcome of both) {
    assert.ok(outcome.status === 'rejected')
    assert.deepEqual(
      { code: outcome.reason.code, status: outcome.reason.status, retryable: outcome.reason.retryable },
      refused,
    )
  }
  assert.equal(await s.store.findRun('acme', task.id), undefined)
  assert.equal((await s.store.listSessions('acme', {})).total, 0)
  s.runner.onExecute = () => {}
  const { events } = await s.dispatch.start('acme', task, 0, never)
  assert.equal((await collect(events)).at(-1)?.type, 'result')
  assert.equal((await s.store.findRun('acme', task.id))?.status, 'ok')
})
