import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { startModelServer, terminalOf, testEnvelope, textOf } from '#testing'
import type { RunEvent } from '#contracts/run-event'
import { patience } from '../thread.ts'
import { children, conversation, skip, stage, type Stage, until } from './support.ts'

const fake = (how: string) => ({
  command: [process.execPath, fileURLToPath(new URL('fake-codex.ts', import.meta.url)), how] as [string, ...string[]],
  patience: { ...patience, startMs: 5_000, answerMs: 2_000, silenceMs: 1_000 },
})
const failure = (events: readonly RunEvent[]): unknown[] => {
  const terminal = terminalOf(events)
  return terminal.type === 'error' ? [terminal.code, terminal.message] : [terminal.type]
}

/** A run on the real program that is in the middle of its answer, and the process's id. */
async function underWay(t: TestContext, abort?: AbortSignal) {
  const staged: Stage = await stage(t, { text: 'one two three', hangAfter: 2 })
  const before = await children()
  const { promise: begun, resolve } = Promise.withResolvers<void>()
  const events = staged.run('hi', { sessionId: 's' }, abort, ({ type }) => type === 'assistant' && resolve())
  await begun
  const [pid, ...more] = (await children()).filter((one) => !before.includes(one))
  assert.ok(pid !== undefined && more.length === 0, 'a run is one process')
  return { ...staged, events, pid }
}
const gone = async (pid: number): Promise<boolean> =>
  readFile(`/proc/${pid}/stat`, 'utf8').then(
    (stat) => / Z /.test(stat),
    () => true,
  )

for (const [how, what, message] of [
  ['garbage', 'writes something that is not its protocol', 'Codex wrote something that is not its protocol.'],
  ['flood', 'writes a line without an end', 'Codex wrote something that is not its protocol.'],
  ['exit', 'exits', 'Codex stopped in the middle of the turn.'],
  ['mute', 'never answers', 'Codex does not answer.'],
  ['stubborn', 'says nothing any more', 'The model server said nothing for 1 s.'],
  ['early', 'ends a turn that nobody stopped', 'Codex ended the turn early.'],
  ['hostTool', 'begins to use a tool of the machine', 'Codex began to use a tool of this machine.'],
] as const) {
  test(`a process that ${what} ends the run with one error, and is gone`, async (t) => {
    const before = await children()
    const { run } = await stage(t, {}, fake(how))
    assert.deepEqual(failure(await run('hi')), [how === 'stubborn' ? 'model_error' : 'runtime_error', message])
    assert.deepEqual(
      (await children()).filter((pid) => !before.includes(pid)),
      [],
    )
  })
}

test('runs of a tenant that take all of its slots leave some to others', async (t) => {
  const { command } = fake('stubborn')
  const { run } = await stage(t, {}, { command, config: { maxProcesses: 2 } })
  /** A run that does not end by itself. */
  const begin = (tenantId: string) => {
    const abort = new AbortController()
    const { promise: begun, resolve, reject } = Promise.withResolvers<void>()
    const over = run('hi', { tenantId }, abort.signal, ({ type }) => type === 'session_init' && resolve())
    begun.catch(() => {})
    over.then(() => reject(new Error('it ended before it began')), reject)
    const stop = async (): Promise<readonly RunEvent[]> => {
      abort.abort()
      return over
    }
    return { begun, stop }
  }
  const runs = [begin('a')]
  try {
    // Those that came together would take the slot in any order.
    await runs[0]!.begun
    runs.push(begin('a'), begin('a'), begin('b'))
    await runs[3]!.begun
    assert.deepEqual(await runs[1]!.stop(), [], 'one that waits ends without an event when it is stopped')
    await runs[0]!.stop()
    await runs[2]!.begun
  } finally {
    await Promise.allSettled(runs.map(({ stop }) => stop()))
  }
})

test('a delegated run takes the slot that its parent leaves free, or ends at once', async (t) => {
  const { command } = fake('stubborn')
  const { run } = await stage(t, {}, { command, config: { maxProcesses: 2 } })
  const abort = new AbortController()
  const runs: Promise<readonly RunEvent[]>[] = []
  try {
    for (const more of [{}, { awaited: true as const }]) {
      const { promise: begun, resolve } = Promise.withResolvers<void>()
      runs.push(run('hi', more, abort.signal, ({ type }) => type === 'session_init' && resolve()))
      await begun
    }
    assert.equal(failure(await run('hi', { awaited: true }))[0], 'runtime_busy')
  } finally {
    abort.abort()
    await Promise.allSettled(runs)
  }
})

test('a program that cannot be started ends the run with one error', async (t) => {
  const { run } = await stage(t, {}, { command: ['/nowhere/codex'] })
  assert.deepEqual(failure(await run('hi')), ['runtime_error', 'Codex stopped.'])
})

test('warnings are not failures', async (t) => {
  const { run } = await stage(t, {}, fake('warns'))
  const events = await run('hi')
  assert.deepEqual([terminalOf(events).type, textOf(events)], ['result', 'fine'])
})

test('what the process asks to be allowed is refused', async (t) => {
  const { run } = await stage(t, {}, fake('asks'))
  assert.equal(textOf(await run('hi')), 'refused')
})

test('a stopped run closes its model connection and leaves no process', { skip }, async (t) => {
  const abort = new AbortController()
  const { events, pid, models, run } = await underWay(t, abort.signal)
  abort.abort()
  assert.equal(
    (await events).some(({ type }) => type === 'result' || type === 'error'),
    false,
  )
  await models.requests[0]!.ended
  assert.equal(models.requests[0]!.closedEarly, true)
  assert.equal(await gone(pid), true)
  models.next({ text: 'fine' })
  assert.equal(terminalOf(await run('again', { sessionId: 's' })).type, 'result')
  assert.deepEqual(
    conversation(models.requests[1]!).filter((line) => line.startsWith('user')),
    ['user: hi', 'user: again'],
  )
})

test('a run that is stopped while its process starts leaves none', { skip }, async (t) => {
  const { run, models } = await stage(t)
  const before = await children()
  const abort = new AbortController()
  const events = run('hi', { sessionId: 's' }, abort.signal)
  await until(async () => (await children()).length > before.length)
  abort.abort()
  assert.deepEqual(
    (await events).map(({ type }) => type).filter((type) => type !== 'session_init'),
    [],
  )
  assert.deepEqual(
    (await children()).filter((pid) => !before.includes(pid)),
    [],
  )
  assert.equal(models.requests.length, 0)
})

test('a process that is killed ends the run, and the conversation goes on', { skip }, async (t) => {
  const { events, pid, models, run } = await underWay(t)
  process.kill(pid, 'SIGKILL')
  assert.deepEqual(failure(await events), ['runtime_error', 'Codex stopped in the middle of the turn.'])
  models.next({ text: 'fine' })
  assert.equal(terminalOf(await run('again', { sessionId: 's' })).type, 'result')
  assert.equal(conversation(models.requests[1]!).at(-1), 'user: again')
})

test('a process that hangs does not keep a stopped run: it is killed', { skip }, async (t) => {
  const abort = new AbortController()
  const { events, pid } = await underWay(t, abort.signal)
  process.kill(pid, 'SIGSTOP')
  abort.abort()
  await events
  assert.equal(await gone(pid), true)
})

test('a reader who leaves in the middle of a run leaves no process behind', { skip }, async (t) => {
  const { runtime } = await stage(t, { text: 'one two three', hangAfter: 2 })
  const before = await children()
  const envelope = testEnvelope({ profile: { model: 'openai/stand-in' } })
  for await (const event of runtime.run(envelope, new AbortController().signal)) if (event.type === 'assistant') break
  assert.deepEqual(
    (await children()).filter((pid) => !before.includes(pid)),
    [],
  )
})

test('a process ends by itself when ours dies', { skip }, async (t) => {
  const { url } = await startModelServer(t, { reply: { text: 'one two', hangAfter: 1 } })
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-test-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const child = spawn(process.execPath, [fileURLToPath(new URL('dies.ts', import.meta.url)), url], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, TMPDIR: folder },
  })
  const [line] = (await once(child.stdout, 'data')) as [Buffer]
  const pid = Number(line.toString())
  assert.equal(await gone(pid), false)
  child.kill('SIGKILL')
  await until(() => gone(pid))
})

test('the process has nothing of our environment, and no secret is on its command line', { skip }, async (t) => {
  const { models, pid } = await underWay(t)
  const env = (await readFile(`/proc/${pid}/environ`, 'utf8')).split('\0').filter((line) => line !== '')
  assert.deepEqual(env.map((line) => line.split('=')[0]).toSorted(), ['AGENT_ORC_MODEL_KEY', 'CODEX_HOME', 'HOME'])
  const { authorization } = models.requests[0]!.headers
  assert.equal(authorization, `Bearer ${env.find((line) => line.startsWith('AGENT_ORC_MODEL_KEY='))!.split('=')[1]}`)
  assert.doesNotMatch(await readFile(`/proc/${pid}/cmdline`, 'utf8'), /secret|127\.0\.0\.1/)
  process.kill(pid, 'SIGKILL')
})

test(
  'in a sandbox worker models are reached through the runner, with the worker’s token of the moment',
  { skip },
  async (t) => {
    const runner = await startModelServer(t)
    const tokens = ['one', 'two']
    const egress = { baseUrl: () => runner.url, token: () => tokens.shift()!, fetch }
    const { run } = await stage(t, {}, { egress })
    await run('hi')
    await run('hi')
    assert.deepEqual(
      runner.requests.map(({ headers }) => headers.authorization),
      ['Bearer one', 'Bearer two'],
    )
  },
)
