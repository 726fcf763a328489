// A worker and a runner's hub, each in a kernel of its own, over a real socket.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { boot, type BootError, type Entry } from '#kernel'
import { newSessionId } from '#contracts/ids'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { SidecarLink } from '#contracts/sidecar'
import { collectRun, type ModelRequestBody, startModelServer, terminalOf, testEnvelope, testRuntime } from '#testing'
import runHost from '../../plugins/run-host/index.ts'
import worker from '../../plugins/worker/index.ts'
import { createWorkerTokens, type WorkerTokens } from '../../plugins/sandboxes/hub/tokens.ts'
import type { Hub } from '../../plugins/sandboxes/hub/hub.ts'
import type { WorkerChannel } from '../../plugins/sandboxes/hub/worker.ts'
import { callsOf, hubPlugin, wayOf } from '../../plugins/sandboxes/test/hub.ts'
import workerIdentity from '../../plugins/worker/identity/index.ts'
import modelBuiltin from '../../providers/model-builtin/index.ts'
import modelOpenai from '../../providers/model-openai/index.ts'
import general from '../../runtimes/general/index.ts'

const timeout = 60_000

interface Runner {
  readonly hub: Hub
  readonly tokens: WorkerTokens
  readonly url: string
  stop(): Promise<void>
}

interface RunnerOptions {
  readonly key?: Buffer
  readonly modelUrl?: string
  readonly port?: number
}

const newKey = (): Buffer => randomBytes(32)

async function startRunner(
  t: TestContext,
  { key = newKey(), modelUrl, port = 0 }: RunnerOptions = {},
): Promise<Runner> {
  const tokens = createWorkerTokens(key, undefined)
  const models = modelUrl === undefined ? {} : { openai: { baseUrl: modelUrl, apiKey: 'key-of-the-runner' } }
  const { hub, plugin } = hubPlugin({ tokens, models })
  const running = await boot({
    name: 'runner',
    listeners: { workers: { host: '127.0.0.1', port }, runner: { host: '127.0.0.1', port: undefined } },
    plugins: [{ name: 'hub', plugin }],
    log: { level: 'silent' },
  })
  t.after(() => running.stop())
  return { hub, tokens, url: running.urls['workers']!, stop: running.stop }
}

interface Places {
  readonly stateDir: string
  readonly workspace: string
}
async function places(t: TestContext): Promise<Places> {
  const path = await mkdtemp(join(tmpdir(), 'agent-orc-worker-e2e-'))
  // The worker may still be writing, because hooks run in the order in which they were registered.
  t.after(() => rm(path, { recursive: true, force: true, maxRetries: 20, retryDelay: 50 }))
  return { stateDir: join(path, 'state'), workspace: join(path, 'workspace') }
}

/** The worker role's plugins, as config/worker.yaml lists them. */
async function startWorker(t: TestContext, url: string, { sessionId, token }: WorkerChannel, at?: Places) {
  const { stateDir, workspace } = at ?? (await places(t))
  const failed = Promise.withResolvers<BootError>()
  const entries: Entry[] = [
    { name: 'worker-identity', plugin: workerIdentity, config: { runnerUrl: url, sessionId, token } },
    { name: 'worker', plugin: worker, config: { stateDir, workspace } },
    { name: 'run-host', plugin: runHost, config: { mode: 'all' } },
    ...[general, modelBuiltin, modelOpenai].map((plugin) => ({ name: plugin.name, plugin })),
  ]
  const role = { name: 'worker', listeners: { sidecar: { host: '127.0.0.1', port: undefined } }, plugins: entries }
  const running = await boot({ ...role, log: { level: 'silent' } }, { onFailure: failed.resolve })
  t.after(() => running.stop())
  return { failed: failed.promise, stop: running.stop }
}

const runOf = (channel: WorkerChannel, url: string): Pick<SidecarLink, 'run'> => ({
  run: (envelope, signal) => channel.run(envelope, signal, wayOf(url, callsOf({ model: envelope.profile.model }))),
})
async function ask(channel: WorkerChannel, url: string, prompt: string, fields: Partial<RunEnvelope> = {}) {
  const { sessionId } = channel
  const envelope = testEnvelope({ sessionId, prompt, ...fields, profile: { model: 'builtin/demo' } })
  const last = terminalOf(await collectRun(runOf(channel, url), envelope))
  return last.type === 'result' ? last.text : `error ${last.code}`
}
const session = (): string => newSessionId('00000000')

/** A sidecar as a runner sees it: each session gets a worker when it is first used. */
function workersAsSidecar(t: TestContext, runner: Runner): SidecarLink {
  const channels = new Map<string, Promise<WorkerChannel>>()
  const open = async (sessionId: string, state?: Parameters<WorkerChannel['setState']>[0]): Promise<WorkerChannel> => {
    const channel = await runner.hub.open('acme', sessionId)
    channel.setState(state)
    await startWorker(t, runner.url, channel)
    return channel
  }
  const channelOf = (sessionId: string): Promise<WorkerChannel> => {
    const known = channels.get(sessionId) ?? open(sessionId)
    channels.set(sessionId, known)
    return known
  }
  return {
    health: async () => ({ ok: true, runtime: 'general', runtimes: ['general'], instance: 'x', inflight: 0 }),
    async *run(envelope, signal) {
      yield* runOf(await channelOf(envelope.sessionId), runner.url).run(envelope, signal)
    },
    exportState: async (_runtime, sessionId) => (await channels.get(sessionId))?.exportState(),
    async hydrate(_runtime, sessionId, bundle) {
      channels.set(sessionId, open(sessionId, bundle))
      await channels.get(sessionId)
    },
    forget: async () => {},
  }
}

const answer = ({ messages }: ModelRequestBody) => {
  const last = messages.at(-1)!
  const said = messages.filter(({ role }) => role === 'user').map(({ content }) => String(content))
  if (last.content === 'hang') return { hangAfter: 2 }
  return { text: `You said: ${said.join(', ')}` }
}
// Without its script for memory: a bundle that is corrupt is refused when the worker restores it, and nobody waits for that.
testRuntime(
  'general',
  async (t) => {
    const model = await startModelServer(t, { reply: answer })
    const runner = await startRunner(t, { modelUrl: model.url })
    return workersAsSidecar(t, runner)
  },
  {
    say: (word) => word,
    hang: 'hang',
    envelope: { profile: { model: 'openai/m' } },
  },
)

test('the key of a model server stays in the runner', { timeout }, async (t) => {
  const model = await startModelServer(t, { reply: answer })
  const runner = await startRunner(t, { modelUrl: model.url })
  const link = workersAsSidecar(t, runner)
  const events = await collectRun(link, testEnvelope({ profile: { model: 'openai/m' } }))
  assert.equal(terminalOf(events).type, 'result')
  assert.equal(model.requests[0]!.headers.authorization, 'Bearer key-of-the-runner')
})

test(
  'a conversation moves with its state to another worker, and one that is missing is said to be',
  { timeout },
  async (t) => {
    const runner = await startRunner(t)
    const sessionId = session()
    const first = await runner.hub.open('acme', sessionId)
    first.setState(undefined)
    const at = await places(t)
    const one = await startWorker(t, runner.url, first, at)
    await ask(first, runner.url, 'remember that my name is Marmalade')
    const bundle = await first.exportState()
    assert.ok(bundle)
    await one.stop()
    // Restored from the runner's copy, on another disk.
    const second = await runner.hub.open('acme', sessionId)
    second.setState(bundle)
    const two = await startWorker(t, runner.url, second)
    assert.match(await ask(second, runner.url, 'what did I say before?', { resume: true }), /Marmalade/)
    await two.stop()
    // The runner's answer wins over files on a disk: here there is no conversation.
    const third = await runner.hub.open('acme', sessionId)
    third.setState(undefined)
    await startWorker(t, runner.url, third, at)
    await assert.rejects(ask(third, runner.url, 'what did I say before?', { resume: true }), {
      code: 'session_state_missing',
      status: 409,
    })
  },
)

test('a warm worker is bound to a session with a conversation, and answers at once', { timeout }, async (t) => {
  const runner = await startRunner(t)
  const before = await runner.hub.open('acme', session())
  before.setState(undefined)
  const former = await startWorker(t, runner.url, before)
  await ask(before, runner.url, 'remember that my name is Marmalade')
  const bundle = await before.exportState()
  await former.stop()
  const slot = await runner.hub.open('acme', 'warm-1')
  slot.setState(undefined)
  await startWorker(t, runner.url, slot)
  await slot.connected(AbortSignal.timeout(timeout))
  const bound = await slot.bind(session())
  bound.setState(bundle)
  assert.match(await ask(bound, runner.url, 'what did I say before?', { resume: true }), /Marmalade/)
  const exported = await bound.exportState()
  assert.match(Buffer.from(exported!.bytes).toString(), /Marmalade/)
})

test('a token that is about to expire is renewed by a poll', { timeout }, async (t) => {
  const key = newKey()
  const runner = await startRunner(t, { key })
  const channel = await runner.hub.open('acme', session())
  const { expiresAt, ...claims } = await runner.tokens.verify(`Bearer ${channel.token}`)
  // Minted half a day and more ago.
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() - 20 * 60 * 60 * 1_000 })
  const old = await runner.tokens.mint(claims)
  t.mock.timers.reset()
  assert.ok(old.expiresAt < expiresAt)
  const seen: (string | undefined)[] = []
  const { verify } = runner.tokens
  Object.assign(runner.tokens, {
    verify: (authorization: string | undefined) => (seen.push(authorization), verify(authorization)),
  })
  await startWorker(t, runner.url, { ...channel, sessionId: channel.sessionId, token: old.token })
  assert.match(await ask(channel, runner.url, 'who are you?'), /demo responder/)
  assert.equal(seen[0], `Bearer ${old.token}`)
  assert.notEqual(seen.at(-1), `Bearer ${old.token}`)
})

test('a worker whose session has another one now ends, and says why', { timeout }, async (t) => {
  const runner = await startRunner(t)
  const sessionId = session()
  const first = await runner.hub.open('acme', sessionId)
  const { failed } = await startWorker(t, runner.url, first)
  await first.connected(AbortSignal.timeout(timeout))
  await runner.hub.open('acme', sessionId)
  assert.match((await failed).message, /refuses this worker: invalid or missing worker token: superseded/)
})

test('a runner that is a new process does not know the workers of the old one', { timeout }, async (t) => {
  const key = newKey()
  const first = await startRunner(t, { key })
  const channel = await first.hub.open('acme', session())
  const { failed } = await startWorker(t, first.url, channel)
  await channel.connected(AbortSignal.timeout(timeout))
  await first.stop()
  await startRunner(t, { key, port: Number(new URL(first.url).port) })
  assert.match((await failed).message, /superseded/)
})

test('a reader that takes its time gets the whole run', { timeout }, async (t) => {
  const words = 20_000
  const model = await startModelServer(t, { reply: () => ({ text: 'word '.repeat(words) }) })
  const runner = await startRunner(t, { modelUrl: model.url })
  const link = workersAsSidecar(t, runner)
  const slow: Pick<SidecarLink, 'run'> = {
    async *run(envelope, signal) {
      let chunks = 0
      for await (const chunk of link.run(envelope, signal)) {
        if (chunks++ % 8 === 0) await sleep(1)
        yield chunk
      }
    },
  }
  const events = await collectRun(slow, testEnvelope({ profile: { model: 'openai/m' } }))
  const last = terminalOf(events)
  assert.equal(last.type === 'result' && last.text.length, words * 5)
})

test('the tools of a worker are called through the hub, and their calls are stopped by it', { timeout }, async (t) => {
  const runner = await startRunner(t)
  const channel = await runner.hub.open('acme', session())
  const at = await places(t)
  await startWorker(t, runner.url, channel, at)
  await channel.connected(AbortSignal.timeout(timeout))
  const { signal } = new AbortController()
  const written = await channel.callTool(
    'write_file',
    { path: 'a.txt', content: 'hello' },
    { signal, timeoutMs: 10_000 },
  )
  assert.deepEqual(written, { ok: true, content: "Wrote 5 bytes to 'a.txt'." })
  const late = await channel.callTool('shell', { command: 'echo begun; sleep 600' }, { signal, timeoutMs: 1_500 })
  assert.deepEqual(late, { ok: false, content: 'begun\n[It was killed after 0.75 s.]' })
})
