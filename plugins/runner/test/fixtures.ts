import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { capability, definePlugin, linesOf } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { RunEnvelope } from '#contracts/run-envelope'
import { createEventEncoder, type EventEncoder } from '#contracts/run-event'
import { type ExecuteRun, LocalRunners, RunnerSessions } from '#contracts/runner'
import type { StateBundle } from '#contracts/runtime'
import { type SidecarHealth, type SidecarLink, Sidecars } from '#contracts/sidecar'
import { type ToolContext, Toolkit } from '#contracts/tools'
import { VfsManager } from '#contracts/vfs-manager'
import { SandboxWorkers } from '#contracts/workers'
import { fake, testKernel, type TestKernel, testProfile } from '#testing'
import runnerPlugin from '../index.ts'
import type { Runner } from '../runner.ts'

export type Script = (
  envelope: RunEnvelope,
  events: EventEncoder,
  signal: AbortSignal,
) => AsyncIterable<string | Buffer>

export const profile = (name = 'p', tools: string[] = [], runtime = 'runtime_a'): Profile =>
  testProfile(name, { tools, runtime })

export const run = (over: Partial<ExecuteRun> = {}): ExecuteRun => ({
  runId: 'r1',
  sessionId: 'sess-00000000-00000001',
  prompt: 'hi',
  firstSeq: 1,
  timeoutMs: 60_000,
  create: { profile: profile() },
  ...over,
})

/** Answers with one delta and a result. */
export const answer: Script = async function* (_envelope, events) {
  yield events.line({ type: 'assistant', text: 'hello', delta: true })
  yield events.line({ type: 'result', text: 'hello', finishReason: 'stop' })
}

/** Yields one event, then waits for its signal. */
export const hang: Script = async function* (_envelope, events, signal) {
  yield events.line({ type: 'progress', stage: 'started' })
  if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
}

type Reply = Awaited<ReturnType<TestKernel['listeners'][string]['inject']>>

interface CallOptions {
  /** '' leaves the header out. */
  readonly tenant?: string
  readonly body?: unknown
}

export interface Fixture {
  readonly runner: Runner
  readonly sessions: RunnerSessions
  readonly kernel: TestKernel
  /** Asks the runner's own routes, in the name of `acme` unless told otherwise. */
  readonly call: (method: 'GET' | 'POST' | 'DELETE', url: string, options?: CallOptions) => Promise<Reply>
  readonly envelopes: RunEnvelope[]
  readonly signals: AbortSignal[]
  readonly forgotten: string[]
  /** A promise that the sidecar waits for before it forgets, and its health. */
  readonly pace: { forget?: Promise<unknown>; health?: () => Promise<SidecarHealth> }
  readonly hydrated: string[]
  /** What was hydrated last. */
  readonly bundles: Map<string, StateBundle>
  readonly states: Map<string, StateBundle | Error>
  readonly invoked: { name: string; context: ToolContext }[]
  readonly stop: () => Promise<void>
}

/** The real plugin on a scripted sidecar and a toolkit of two tools. */
export async function runnerOf(
  t: TestContext,
  script: Script,
  config: object = {},
  sandboxes?: SandboxWorkers,
  listen = false,
  vfs?: VfsManager,
): Promise<Fixture> {
  const envelopes: RunEnvelope[] = []
  const signals: AbortSignal[] = []
  const forgotten: string[] = []
  const pace: Fixture['pace'] = {}
  const hydrated: string[] = []
  const bundles: Fixture['bundles'] = new Map()
  const states: Fixture['states'] = new Map()
  const invoked: Fixture['invoked'] = []
  const sidecar: SidecarLink = {
    health: () => pace.health?.() ?? Promise.reject(new Error('not asked')),
    async *run(envelope, signal) {
      envelopes.push(envelope)
      signals.push(signal)
      const events = createEventEncoder(envelope.runId, envelope.sessionId, envelope.firstSeq)
      for await (const text of script(envelope, events, signal)) yield Buffer.from(text)
    },
    async exportState(_runtime, id) {
      const state = states.get(id)
      if (state instanceof Error) throw state
      return state
    },
    async hydrate(_runtime, id, bundle) {
      if (Buffer.from(bundle.bytes).toString() === 'corrupt') throw new Error('corrupt')
      await turn()
      hydrated.push(id)
      bundles.set(id, bundle)
    },
    async forget(_runtime, id) {
      await pace.forget
      forgotten.push(id)
    },
  }
  const names = ['calculate', 'current_time']
  const spec = (name: string) => ({ name, description: name, inputSchema: { type: 'object' } })
  const taken: { runner?: Runner; sessions?: RunnerSessions } = {}
  const Done = capability<true>('test.done')
  const taker = definePlugin({
    name: 'taker',
    requires: { runners: LocalRunners, sessions: RunnerSessions },
    provides: { done: Done },
    async setup(ctx) {
      taken.runner = ctx.deps.runners.get('local') as Runner
      taken.sessions = ctx.deps.sessions
      return { done: true as const }
    },
  })
  const plugins = [
    { name: 'runner', plugin: runnerPlugin, config: { baseUrl: 'http://runner.test:7060', drain: '0s', ...config } },
    fake(Sidecars, {
      forRuntime: () => sidecar,
      runtimes: async () => ['general'],
      slots: () => [
        { runtime: 'general', mode: 'sidecar', url: 'http://sidecar:7070' },
        { runtime: 'runtime_a', mode: 'stub', url: '' },
      ],
    }),
    fake(Toolkit, {
      specs: (wanted) => names.filter((name) => !wanted || wanted.includes(name)).map(spec),
      delegations: { take: () => [], answer: () => false, call: async () => ({ ok: true, content: 'called' }) },
      async invoke(name, input, context) {
        invoked.push({ name, context })
        return input === undefined ? { ok: false, content: 'No input.' } : { ok: true, content: 'done' }
      },
    }),
    ...(sandboxes ? [fake(SandboxWorkers, sandboxes)] : []),
    ...(vfs ? [fake(VfsManager, vfs)] : []),
    taker,
  ]
  const kernel = await testKernel(t, plugins, { listeners: ['runner'], listen })
  return {
    runner: taken.runner!,
    sessions: taken.sessions!,
    kernel,
    call: (method, url, { tenant = 'acme', body } = {}) =>
      kernel.listeners['runner']!.inject({
        method,
        url,
        headers: tenant === '' ? {} : { 'x-tenant-id': tenant },
        ...(body === undefined ? {} : { payload: body as object }),
      }),
    envelopes,
    signals,
    forgotten,
    pace,
    hydrated,
    bundles,
    states,
    invoked,
    stop: () => kernel.stop(),
  }
}

export const until = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await turn()
}

export type Line = Record<string, unknown>

/** Every line of an execution, parsed. */
export async function collect(chunks: AsyncIterable<Buffer>): Promise<Line[]> {
  const lines: Line[] = []
  for await (const chunk of chunks) {
    for (const line of linesOf(chunk)) lines.push(JSON.parse(line.toString()) as Line)
  }
  return lines
}

export const execute = (fixture: Fixture, over: Partial<ExecuteRun> = {}, signal = new AbortController().signal) =>
  collect(fixture.runner.execute('acme', run(over), signal))

export const types = (lines: readonly Line[]): unknown[] => lines.map((line) => line['type'])
export const codeOf = (lines: readonly Line[]): unknown => lines.at(-1)!['code']

/** The plugin on a sidecar whose run yields the lines that the test gives to `say`, one at a time; `end` ends it. */
export async function paced(t: TestContext, config: object = {}) {
  let woken = Promise.withResolvers<void>()
  const told: string[] = []
  const f = await runnerOf(
    t,
    async function* (_envelope, events, signal) {
      const stopped = new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
      for (;;) {
        for (const text of told.splice(0)) {
          if (text === 'end') return yield events.line({ type: 'result', text, finishReason: 'stop' })
          yield events.line({ type: 'assistant', text, delta: true })
        }
        if (signal.aborted) return
        if (told.length > 0) continue
        woken = Promise.withResolvers<void>()
        await Promise.race([woken.promise, stopped])
      }
    },
    config,
  )
  const say = (...texts: string[]): void => {
    told.push(...texts)
    woken.resolve()
  }
  return { f, say }
}

/** Asserts that `seq` counts up from `first`, and that the only terminal line is the last one. */
export const consecutive = (lines: readonly Line[], first = 1): void => {
  assert.deepEqual(
    lines.map((line) => line['seq']),
    lines.map((_, i) => first + i),
  )
  const terminals = lines.filter((line) => line['type'] === 'result' || line['type'] === 'error')
  assert.equal(terminals.length, 1)
  assert.equal(lines.at(-1), terminals[0])
}
