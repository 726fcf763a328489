import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { AppError, definePlugin, type Entry, type Plugin } from '#kernel'
import { fake, testKernel, type TestKernel, testProfile } from '#testing'
import { Approvals } from '#contracts/approvals'
import { ApiGuard, type Caller, type Guard, InternalGuard } from '#contracts/auth'
import type { Delegation } from '#contracts/delegation'
import { Kv } from '#contracts/kv'
import { Pace } from '#kit'
import { defaultLimits, type Limits, overLimit, type TenantLimits } from '#contracts/limits'
import { McpServers } from '#contracts/mcp-servers'
import { type Profile, Profiles } from '#contracts/profiles'
import { createEventEncoder, type RuntimeEvent } from '#contracts/run-event'
import { type Orphan, RunStore } from '#contracts/run-store'
import { type ExecuteRun, Fleet, type Homecoming, type Placement, type RunnerLink } from '#contracts/runner'
import { RunDispatch } from '#contracts/runs'
import type { StateBundle } from '#contracts/runtime'
import { runsOn } from '../index.ts'
import { MemoryRunStore } from '../memory/store.ts'

/** What the fake runner does with a run: yields events, or raw bytes where a test needs them wrong. */
export type Script = (run: ExecuteRun, signal: AbortSignal) => AsyncIterable<RuntimeEvent | Buffer>

export const profileNamed = (name: string, limits: Profile['limits'] = {}): Profile => testProfile(name, { limits })

export const text = (words: string): RuntimeEvent => ({ type: 'assistant', text: words, delta: true })
export const result = (words: string): RuntimeEvent => ({ type: 'result', text: words, finishReason: 'stop' })

export const chat: Script = async function* (run) {
  yield { type: 'session_init', runtimeSessionId: `vendor-${run.sessionId}` }
  yield text('Hello, ')
  yield text('world.')
  yield { type: 'usage', inputTokens: 3, outputTokens: 2, model: 'demo', costCents: 0.5 }
  yield result('Hello, world.')
}

export const untilAborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })

/** Yields one event and then waits to be stopped. */
export const endless: Script = async function* (_run, signal) {
  yield text('working')
  await untilAborted(signal)
}

/** A runner whose sessions live in a set, and whose runs follow a script. */
export class FakeRunner implements RunnerLink {
  readonly hash = 'aaaaaaaa'
  script: Script = chat
  readonly executed: ExecuteRun[] = []
  readonly known = new Set<string>()
  readonly hydrated: { sessionId: string; bundle: StateBundle | undefined }[] = []
  readonly exported: string[] = []
  aborted = 0
  /** What the fleet was asked, for new sessions and for those that exist. */
  readonly asked: (Placement | Homecoming)[] = []
  /** No runner can be found for a session that exists. */
  away = false
  onExecute: (run: ExecuteRun) => void = () => {}
  onHydrate: () => void = () => {}
  info = async () => ({
    hash: this.hash,
    instance: 'i-1',
    capabilities: [],
    capabilitiesKnown: true,
    substrates: [],
    substratesKnown: true,
  })
  usage = async () => undefined
  takeBroadcast = async () => 0
  behind = async () => []
  getSession = async () => undefined
  deleteSession = async () => {}
  invokeTool = async () => ({ ok: false, content: 'No tool is here.' })
  async hydrate(_tenantId: string, sessionId: string, _profile: Profile, bundle?: StateBundle): Promise<void> {
    this.onHydrate()
    this.known.add(sessionId)
    this.hydrated.push({ sessionId, bundle })
  }
  async exportState(_tenantId: string, sessionId: string): Promise<StateBundle> {
    this.exported.push(sessionId)
    return { bytes: Buffer.from(`state of ${sessionId}`), contentType: 'application/json' }
  }
  unsaved = async () => []
  topology = async () => assert.fail('no run needs it')
  workerLeases = async () => []
  workerLease = async () => undefined
  invalidateSandbox = async () => 0
  objectWrites = async () => []
  delegations = async (): Promise<readonly Delegation[]> => []
  async answerDelegation(): Promise<void> {}
  async putSkill(): Promise<void> {}
  vfsLeases = async () => []
  vfsLease = async () => undefined
  attach: RunnerLink['attach'] = () => {
    throw new AppError('unknown_run', 404)
  }
  async *execute(_tenantId: string, run: ExecuteRun, signal: AbortSignal): AsyncGenerator<Buffer> {
    this.executed.push(run)
    this.onExecute(run)
    if (run.create) this.known.add(run.sessionId)
    const encoder = createEventEncoder(run.runId, run.sessionId, run.firstSeq)
    signal.addEventListener('abort', () => this.aborted++)
    for await (const event of this.script(run, signal)) {
      yield Buffer.isBuffer(event) ? event : Buffer.from(encoder.line(event))
    }
  }
}

/** Bearer `<tenant>` or `<tenant>:<role>`; everything else about authentication is another plugin's. */
const guard = (): Guard => {
  const callers = new WeakMap<object, Caller>()
  return {
    protect: (app) => {
      app.addHook('onRequest', async (request) => {
        const [tenantId = 'acme', role = 'owner'] = (request.headers.authorization ?? 'acme').split(':')
        callers.set(request, { tenantId, role: role as Caller['role'], keyId: 'tak_test' })
      })
    },
    callerOf: (request) => callers.get(request)!,
  }
}

export const memoryKv = (): Kv => ({
  backend: 'memory',
  claim: async () => true,
  hit: async () => ({ allowed: true, count: 1, retryAfterMs: 0 }),
  publish() {},
  subscribe: () => () => {},
})

/** A Redis that several kernels share. */
export function sharedKv(): Kv {
  const listeners = new Map<string, Set<(message: string) => void>>()
  return {
    ...memoryKv(),
    backend: 'redis',
    publish: (channels, message) => {
      for (const channel of channels) {
        for (const listener of listeners.get(channel) ?? []) queueMicrotask(() => listener(message))
      }
    },
    subscribe(channel, listener) {
      const set = listeners.get(channel) ?? new Set()
      listeners.set(channel, set.add(listener))
      return () => void set.delete(listener)
    },
  }
}

export interface Stage {
  readonly kernel: TestKernel
  readonly runner: FakeRunner
  readonly store: RunStore
  readonly dispatch: RunDispatch
}

export interface StageOptions {
  readonly runner?: FakeRunner
  readonly store?: RunStore
  readonly wrap?: (store: RunStore) => RunStore
  readonly kv?: Kv
  readonly profiles?: readonly Profile[]
  readonly config?: Record<string, string>
  readonly listen?: boolean
  readonly mcpServers?: McpServers
  /** Other parts of the role. */
  readonly more?: readonly Plugin[]
}

/** The runs plugin on a fake runner and the run store in memory. */
export async function stage(t: Pick<TestContext, 'after'>, options: StageOptions = {}): Promise<Stage> {
  const runner = options.runner ?? new FakeRunner()
  const profiles = options.profiles ?? [profileNamed('writer'), profileNamed('other')]
  const find = async (_tenant: unknown, name: string) => profiles.find((p) => p.name === name)
  const findPlaced = async (tenant: string, name: string) => {
    const profile = await find(tenant, name)
    return profile && { profile, revision: 0 }
  }
  const got: { store?: RunStore; dispatch?: RunDispatch } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { dispatch: RunDispatch, store: RunStore },
    async setup(ctx) {
      Object.assign(got, ctx.deps)
      return {}
    },
  })
  const store = options.store ?? new MemoryRunStore()
  const plugins: (Plugin | Entry)[] = [
    {
      name: 'runs',
      plugin: runsOn(async () => options.wrap?.(store) ?? store),
      config: { windDown: '3s', drain: '50ms', ...options.config },
    },
    fake(Profiles, { find, findIn: find, findPlaced }),
    fake(Fleet, {
      place(order) {
        runner.asked.push(order)
        if (order.without?.has(runner.hash)) throw new AppError('no_runner', 503)
        return runner
      },
      home(order) {
        runner.asked.push(order)
        const { sessionId, without } = order
        if (runner.away || sessionId.startsWith('sess-ffffffff') || without?.has(runner.hash))
          throw new AppError('no_runner', 503)
        return runner
      },
      owner: () => runner,
      askAll: async () => [],
      all: () => [runner],
      describe: () => [],
      onLive: () => () => {},
      onDraining: () => () => {},
    }),
    ...(options.mcpServers ? [fake(McpServers, options.mcpServers)] : []),
    ...(options.more ?? []),
    fake(Kv, options.kv ?? memoryKv()),
    fake(ApiGuard, guard()),
    fake(InternalGuard, guard()),
    grab,
  ]
  const kernel = await testKernel(t, plugins, { listen: options.listen ?? false })
  return { kernel, runner, store: got.store!, dispatch: got.dispatch! }
}

/** The same limits for every tenant: those of a role file that says nothing, but for these. */
export function limitsOf(own: Partial<Limits>): TenantLimits {
  const limits = { ...defaultLimits, ...own }
  const nothing = (): void => {}
  const stored = new Map<string, number>()
  const isFull = (tenantId: string): boolean => (stored.get(tenantId) ?? 0) >= limits.storedBytes
  return {
    defaults: limits,
    of: () => limits,
    ownOf: () => ({}),
    change: async () => false,
    stored: {
      add: (tenantId, bytes) => void stored.set(tenantId, (stored.get(tenantId) ?? 0) + bytes),
      isFull,
      admit(tenantId) {
        if (isFull(tenantId)) throw overLimit('storedBytes', limits.storedBytes)
      },
    },
    guard: nothing,
    holdAnswer: () => nothing,
    turn: async () => {},
    works: () => {},
    steady: () => () => 0,
    pace(atOnce) {
      const pace = new Pace({ atOnce, longestMs: Infinity })
      return async (tenantId, signal) => {
        const waitMs = pace.turnOf(tenantId, 60_000 / limits.writesPerMinute)!
        if (waitMs > 0) await sleep(waitMs, undefined, { ref: false, ...(signal ? { signal } : {}) })
      }
    },
    isSpent: () => false,
    paced: (_, body) => body,
    uses: nothing,
    usedBy: async () => ({}),
  }
}

/** A store some of whose methods are the test's own. */
export const meddling = (store: RunStore, change: Partial<RunStore>): RunStore =>
  new Proxy(store, {
    get(target, name) {
      const method = (change[name as keyof RunStore] ?? target[name as keyof RunStore]) as (() => unknown) | undefined
      return method?.bind(target)
    },
  })

/**
 * Runs that are parked, as PostgreSQL has them, in a store from which each is taken once, and what tells a process that people have decided. Of those
 * whose id has a `_`, what stands before it is the parent.
 */
export async function parkedRuns(profile: Profile, ...ids: readonly string[]) {
  const memory = new MemoryRunStore()
  const parked = new Map<string, Orphan>()
  for (const id of ids) {
    const [parent, child] = id.split('_')
    const task = { profile: profile.name, prompt: id, ...(child ? { parent: { runId: parent!, depth: 1 } } : {}) }
    const asked = { tenantId: 'acme', runId: id, sessionId: `sess-${id}`, task, create: { profile } }
    const begun = await memory.start(asked)
    if (begun.kind !== 'started') assert.fail(begun.kind)
    parked.set(id, { ...begun, task, attempt: 1, handedOver: false, elapsedMs: 0 })
  }
  const store = meddling(memory, {
    async resume(_tenantId, id) {
      const orphan = parked.get(id)
      parked.delete(id)
      return orphan
    },
  })
  let resume: Parameters<Approvals['onDecided']>[0] | undefined
  const approvals = fake(Approvals, {
    ask: async () => 'waiting',
    askFor: async () => {},
    decided: async () => ({}),
    left: async () => {},
    onDecided: (go) => void (resume = go),
    onNodes() {},
  })
  return { store, parked, approvals, decide: (id: string) => resume!('acme', id) }
}

export const runId = (): string => `run-${randomBytes(6).toString('hex')}`

/** Waits for what must become true; fails with the sentence when the test's own time is over. */
export async function eventually(sentence: string, check: () => boolean | Promise<boolean>): Promise<void> {
  const until = Date.now() + 10_000
  while (!(await check())) {
    if (Date.now() > until) throw new Error(`never happened: ${sentence}`)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}
