import type { TestContext } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { capability, definePlugin, linesOf } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { RunEnvelope } from '#contracts/run-envelope'
import { createEventEncoder, type EventEncoder } from '#contracts/run-event'
import { type ExecuteRun, RunnerCore, type RunnerService, RunnerSessions } from '#contracts/runner'
import type { StateBundle } from '#contracts/runtime'
import { type SidecarLink, Sidecars } from '#contracts/sidecar'
import { type ToolContext, Toolkit } from '#contracts/tools'
import { SandboxWorkers } from '#contracts/workers'
import { fake, testKernel, testProfile } from '#testing'
import runnerCore from '../index.ts'

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

/** Says that it started, then waits for its signal. */
export const hang: Script = async function* (_envelope, events, signal) {
  yield events.line({ type: 'progress', stage: 'started' })
  if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
}

export interface Fixture {
  readonly core: RunnerService
  readonly sessions: RunnerSessions
  readonly envelopes: RunEnvelope[]
  readonly signals: AbortSignal[]
  readonly forgotten: string[]
  /** What a sidecar waits for before it forgets. */
  readonly pace: { forget?: Promise<unknown> }
  readonly hydrated: string[]
  readonly states: Map<string, StateBundle>
  readonly invoked: { name: string; context: ToolContext }[]
  readonly stop: () => Promise<void>
}

/** The real plugin on a scripted sidecar and a toolkit of two tools. */
export async function runnerOf(
  t: TestContext,
  script: Script,
  config: object = {},
  sandboxes?: SandboxWorkers,
): Promise<Fixture> {
  const envelopes: RunEnvelope[] = []
  const signals: AbortSignal[] = []
  const forgotten: string[] = []
  const pace: Fixture['pace'] = {}
  const hydrated: string[] = []
  const states = new Map<string, StateBundle>()
  const invoked: Fixture['invoked'] = []
  const sidecar: SidecarLink = {
    health: () => Promise.reject(new Error('not asked')),
    async *run(envelope, signal) {
      envelopes.push(envelope)
      signals.push(signal)
      const events = createEventEncoder(envelope.runId, envelope.sessionId, envelope.firstSeq)
      for await (const text of script(envelope, events, signal)) yield Buffer.from(text)
    },
    exportState: async (_runtime, id) => states.get(id),
    async hydrate(_runtime, id, bundle) {
      if (Buffer.from(bundle.bytes).toString() === 'corrupt') throw new Error('corrupt')
      await turn()
      hydrated.push(id)
    },
    async forget(_runtime, id) {
      await pace.forget
      forgotten.push(id)
    },
  }
  const names = ['calculate', 'current_time']
  const spec = (name: string) => ({ name, description: name, inputSchema: { type: 'object' } })
  const taken: { core?: RunnerService; sessions?: RunnerSessions } = {}
  const Done = capability<true>('test.done')
  const taker = definePlugin({
    name: 'taker',
    requires: { core: RunnerCore, sessions: RunnerSessions },
    provides: { done: Done },
    async setup(ctx) {
      taken.core = ctx.deps.core
      taken.sessions = ctx.deps.sessions
      return { done: true as const }
    },
  })
  const kernel = await testKernel(t, [
    { name: 'runner-core', plugin: runnerCore, config: { baseUrl: 'http://runner.test:7060', drain: '0s', ...config } },
    fake(Sidecars, { forRuntime: () => sidecar, runtimes: async () => ['general'], slots: () => [] }),
    fake(Toolkit, {
      specs: (wanted) => names.filter((name) => !wanted || wanted.includes(name)).map(spec),
      has: (name) => names.includes(name),
      async invoke(name, _input, context) {
        invoked.push({ name, context })
        return { ok: true, content: 'done' }
      },
    }),
    ...(sandboxes ? [fake(SandboxWorkers, sandboxes)] : []),
    taker,
  ])
  return {
    core: taken.core!,
    sessions: taken.sessions!,
    envelopes,
    signals,
    forgotten,
    pace,
    hydrated,
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
  collect(fixture.core.execute('acme', run(over), signal))

export const types = (lines: readonly Line[]): unknown[] => lines.map((line) => line['type'])
export const codeOf = (lines: readonly Line[]): unknown => lines.at(-1)!['code']
