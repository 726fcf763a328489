import { setImmediate as turn } from 'node:timers/promises'
import pLimit from 'p-limit'
import { tenantKey } from '#contracts/ids'
import { overLimit } from '#contracts/limits'
import type { RunnerSession } from '#contracts/runner'
import type { StateBundle } from '#contracts/runtime'
import type { SandboxState } from '#contracts/sandbox'
import { asStartFailure, isGone, isStartFailure } from './errors.ts'
import type { ModelCalls } from './egress/calls.ts'
import type { RunEgress } from './egress/run-egress.ts'
import type { Launcher } from './launcher.ts'
import type { Reaper } from './reaper.ts'
import { createAwakeMeter, createUses, isPolling, type Sandbox, stateOf } from './sandbox.ts'
import type { WarmPools } from './warm-pools.ts'

/** How long the worker of a running sandbox may be silent, between two polls or while its network is down, before it is given up. */
const silentMs = 10_000

export type Start = 'launched' | 'warm' | 'resumed' | 'running'
export interface Started {
  readonly sandbox: Sandbox
  readonly start: Start
  readonly startMs: number
}

interface SessionWorkerDeps {
  readonly launcher: Launcher
  readonly reaper: Reaper
  readonly pools: WarmPools
  /** How many sandboxes a tenant's sessions have, including those that are starting. */
  countOf(tenantId: string): number
  /** Throws when the tenant of a session has reached its limit of files. */
  admitFiles(session: RunnerSession): void
}

/** The worker of one session. It may have no sandbox at the moment. */
export class SessionWorker {
  session: RunnerSession
  /** Uses by runs, tools and exports. A sandbox in use is not paused. */
  readonly uses = createUses()
  readonly awake = createAwakeMeter()
  /** The model calls of the run that was prepared last. */
  calls: ModelCalls | undefined
  /** The egress of the run that was prepared last; undefined when its profile allows no hosts. */
  egress: RunEgress | undefined
  readonly #deps: SessionWorkerDeps
  readonly #oneAtATime = pLimit(1)
  readonly #closing = new AbortController()
  #sandbox: Sandbox | undefined
  #latest: Sandbox | undefined
  /** The state of the conversation while there is no channel that holds it. */
  #kept: StateBundle | undefined
  #paused = false
  #doubted = false
  #halting = new AbortController()
  #starting: Promise<Started> | undefined
  /** A sandbox that ended by itself. It is destroyed only after the next start, because the next sandbox may use its files. */
  #remains: Sandbox | undefined

  constructor(session: RunnerSession, deps: SessionWorkerDeps) {
    this.session = session
    this.#deps = deps
  }

  /** The present sandbox. */
  get sandbox(): Sandbox | undefined {
    return this.#sandbox
  }
  /** The last sandbox, which may be gone. */
  get latest(): Sandbox | undefined {
    return this.#latest
  }
  /** The sandbox that holds the session's files: the present one, or one that ended by itself. */
  get withFiles(): Sandbox | undefined {
    return this.#sandbox ?? this.#remains
  }
  get phase(): 'starting' | 'awake' | 'paused' | 'gone' | undefined {
    if (this.#sandbox) return this.#paused ? 'paused' : 'awake'
    return this.#starting ? 'starting' : this.#latest ? 'gone' : undefined
  }
  /** The durable copy of the conversation. */
  get state(): StateBundle | undefined {
    return this.#sandbox?.channel.state ?? this.#kept
  }

  /** Resolves to a sandbox whose worker polls, and starts one if necessary. Concurrent callers share one start. */
  ready(): Promise<Started> {
    return (this.#starting ??= this.#oneAtATime(() => this.#start()).finally(() => {
      this.#starting = undefined
    }))
  }

  /** Called when the provider reports a change. The next use checks the sandbox's state again. */
  doubt(): void {
    this.#doubted = true
  }

  /** Takes over a state that the provider has reported. */
  observe(of: Sandbox, state: SandboxState): void {
    if (of !== this.#sandbox || this.uses.count > 0 || this.#starting) return
    if (state === 'gone') this.#lose()
    else if (state === 'paused' && !this.#paused) this.#fallAsleep()
  }

  /** Pauses the sandbox unless it is in use. */
  pause(): Promise<void> {
    return this.#oneAtATime(async () => {
      if (this.uses.count === 0) await this.#sleep()
    })
  }

  /** Aborts when the sandbox is halted. The reason is the error for its users. */
  get halting(): AbortSignal {
    return this.#halting.signal
  }
  /** Stops everything that runs in the sandbox, even if it is in use. The files stay. */
  halt(why: Error): Promise<void> {
    this.#halting.abort(why)
    this.#halting = new AbortController()
    return this.#oneAtATime(() => this.#sleep())
  }

  /** Ends the sandbox unless it is in use; the next use starts another one, with the same conversation. */
  retire(): Promise<void> {
    return this.#oneAtATime(async () => (this.uses.count > 0 ? undefined : this.#discard()))
  }

  /** Ends the sandbox and its conversation. The next sandbox starts with `state`. */
  replace(state: StateBundle): Promise<void> {
    return this.#oneAtATime(async () => {
      await this.#discard()
      this.#kept = state
      this.#latest = undefined
    })
  }

  /** Ends the worker, and a start that is running. `why` is the error for its callers. */
  async close(why: Error): Promise<void> {
    this.#closing.abort(why)
    await this.#oneAtATime(() => this.#discard())
  }

  async #sleep(): Promise<void> {
    if (!this.#sandbox || this.#paused) return
    try {
      await this.#sandbox.substrate.provider.pause(this.#sandbox.sandboxId)
      this.#fallAsleep()
    } catch (error) {
      if (!isGone(error)) throw error
      this.#lose()
    }
  }
  async #start(): Promise<Started> {
    const begun = performance.now()
    this.#closing.signal.throwIfAborted()
    const start = (await this.#wake()) ?? (await this.#launch())
    return { sandbox: this.#sandbox!, start, startMs: Math.round(performance.now() - begun) }
  }

  /** Makes the present sandbox ready. Undefined: there is none, or it is lost. */
  async #wake(): Promise<Start | undefined> {
    const sandbox = this.#sandbox
    if (!sandbox) return undefined
    if (!this.#paused && !this.#doubted && (await isPolling(sandbox.channel))) return 'running'
    const state = this.#paused ? 'paused' : await stateOf(sandbox)
    this.#doubted = false
    if (state === 'gone') return void this.#lose()
    if (state === 'paused') return this.#resume(sandbox)
    await renewPoll(sandbox)
    try {
      const { signal } = this.#closing
      await this.#deps.launcher.connected(sandbox, AbortSignal.any([signal, AbortSignal.timeout(silentMs)]))
      return 'running'
    } catch {
      await this.#discard()
      return undefined
    }
  }

  async #resume(sleeping: Sandbox): Promise<Start | undefined> {
    this.#deps.admitFiles(this.session)
    await renewPoll(sleeping)
    try {
      await this.#deps.launcher.resume(sleeping, this.#closing.signal)
    } catch (error) {
      if (isGone(error)) return void this.#lose()
      // When the provider cannot be reached, the sandbox is still paused and must be kept.
      if (isStartFailure(error)) await this.#discard()
      throw asStartFailure(error)
    }
    this.#paused = false
    this.awake.woke()
    return 'resumed'
  }

  async #launch(): Promise<Start> {
    const { launcher, pools, countOf } = this.#deps
    const { tenantId, id: sessionId, profile, limits } = this.session
    // The count includes this start.
    if (limits?.sandboxes !== undefined && countOf(tenantId) > limits.sandboxes)
      throw overLimit('sandboxes', limits.sandboxes)
    this.#deps.admitFiles(this.session)
    const bound = await pools.take({ tenantId, sessionId, profile, state: this.#kept })
    const { signal } = this.#closing
    this.#take(
      bound ?? (await launcher.launch({ tenantId, sessionId, profile, state: this.#kept, warm: false, signal })),
    )
    void this.#clear()
    return bound ? 'warm' : 'launched'
  }

  #take(next: Sandbox): void {
    this.#sandbox = this.#latest = next
    // From now on the channel has the state.
    this.#kept = undefined
    this.#paused = this.#doubted = false
    this.awake.woke()
  }

  #fallAsleep(): void {
    this.#paused = true
    this.awake.slept()
  }

  /** Forgets the sandbox, which is gone. */
  #lose(): void {
    if (!this.#sandbox) return
    this.#kept = this.state
    this.#sandbox.channel.close()
    this.#remains = this.#sandbox
    this.#sandbox = undefined
    this.#paused = this.#doubted = false
    this.awake.slept()
  }

  async #discard(): Promise<void> {
    this.#lose()
    await this.#clear()
  }

  async #clear(): Promise<void> {
    const doomed = this.#remains
    this.#remains = undefined
    if (doomed) await this.#deps.reaper.destroy(doomed)
  }
}

/** Ends the open poll, so that a new poll proves that the worker is alive: the worker may have been restarted, or its connection may be dead. */
async function renewPoll({ channel }: Sandbox): Promise<void> {
  channel.endPoll()
  await turn()
}

/** The session workers of a runner. */
export interface WorkerTable {
  /** The worker of a session. A new one has no sandbox. */
  of(session: RunnerSession): SessionWorker
  find(tenantId: string, sessionId: string): SessionWorker | undefined
  all(): readonly SessionWorker[]
  /** How many sandboxes a tenant's sessions have, including those that are starting. */
  countOf(tenantId: string): number
  remove(session: RunnerSession): SessionWorker | undefined
}

export function createWorkerTable(shared: Omit<SessionWorkerDeps, 'countOf'>): WorkerTable {
  const workers = new Map<string, SessionWorker>()
  const exists = ({ phase }: SessionWorker): boolean => phase !== undefined && phase !== 'gone'
  const countOf = (tenantId: string): number =>
    [...workers.values()].filter((worker) => worker.session.tenantId === tenantId && exists(worker)).length
  const deps: SessionWorkerDeps = { ...shared, countOf }
  return {
    of(session) {
      const key = tenantKey(session.tenantId, session.id)
      const worker = workers.get(key) ?? new SessionWorker(session, deps)
      // The session may have left the runner and come back as another object, which holds the present limits of its tenant.
      worker.session = session
      workers.set(key, worker)
      return worker
    },
    find: (tenantId, sessionId) => workers.get(tenantKey(tenantId, sessionId)),
    all: () => [...workers.values()],
    countOf,
    remove(session) {
      const key = tenantKey(session.tenantId, session.id)
      const worker = workers.get(key)
      workers.delete(key)
      return worker
    },
  }
}
