import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import { restoredFromLog } from '#contracts/profiles'
import type { WorkerLease } from '#contracts/leases'
import type { RunnerSession } from '#contracts/runner'
import type { SandboxState } from '#contracts/sandbox'
import type { SidecarLink } from '#contracts/sidecar'
import type { ToolResult } from '#contracts/tools'
import type { VfsManager } from '#contracts/vfs-manager'
import { settleFilesMs, settleFilesTool } from '#contracts/wire/worker'
import type { PreparedRun, SandboxOrder, SandboxWorkers } from '#contracts/workers'
import { ModelCalls } from './egress/calls.ts'
import type { EgressRuns } from './egress/run-egress.ts'
import type { ModelServer } from './egress/model-servers.ts'
import type { CountedMemory } from './hub/state.ts'
import type { Launcher } from './launcher.ts'
import type { Metrics } from './metrics.ts'
import { type Sandbox, stateOf } from './sandbox.ts'
import type { SessionWorker, Start, Started, WorkerTable } from './session-worker.ts'
import type { Substrates } from './substrates.ts'
import { unlessAborted } from './waiting.ts'
import type { WarmPools } from './warm-pools.ts'
import type { Workspaces } from './workspaces.ts'
import { sandboxErrors } from './errors.ts'

export interface ServiceDeps {
  readonly table: WorkerTable
  readonly workspaces: Workspaces
  readonly launcher: Launcher
  readonly pools: WarmPools
  readonly substrates: Substrates
  /** The model servers that workers reach through this runner, by the name of the provider. */
  readonly servers: ReadonlyMap<string, ModelServer>
  readonly egress: EgressRuns
  readonly metrics: Metrics
  readonly memory: CountedMemory
  /** Undefined: this runner has no VirtualFS. */
  readonly vfs: VfsManager | undefined
  readonly log: FastifyBaseLogger
}

/** The sandboxes of the runner's sessions. */
export function createSandboxWorkers(deps: ServiceDeps): SandboxWorkers {
  const { table, workspaces, pools, substrates, metrics, memory, vfs, log } = deps
  const leases = createLeases(table, workspaces)
  return {
    substrates: substrates.names,
    ...(substrates.fallback === undefined ? {} : { defaultSubstrate: substrates.fallback }),
    async prepare(session, order, signal) {
      if (session.profile.workerMode !== 'sandbox') return underWay(table.find(session.tenantId, session.id))
      const worker = table.of(session)
      const ready = await prepare(worker, order.resume, signal, metrics)
      return measured(worker, ready, order, deps)
    },
    link: (session) => linkOf(session, deps),
    async callTool(session, name, input, options) {
      const { workerMode, sandbox: wanted } = session.profile
      if (workerMode !== 'sandbox' && wanted === undefined) return failed('This session has no sandbox.')
      const worker = table.of(session)
      const leave = worker.uses.use()
      try {
        if (writing.has(name)) workspaces.admit(session)
        const { sandbox } = await unlessAborted(worker.ready(), options.signal)
        const { halting } = worker
        const signal = AbortSignal.any([options.signal, halting])
        const files = vfs?.of(session) !== undefined
        const result = await sandbox.channel.callTool(name, input, { ...options, signal, vfs: files })
        if (halting.aborted && !options.signal.aborted) throw halting.reason
        return result
      } catch (err) {
        if (options.signal.aborted) return failed('The call was cancelled.')
        log.warn({ err, sessionId: session.id, tool: name }, 'a tool found no sandbox')
        return failed((isAppError(err) && err.sentence) || 'The sandbox of this session could not be started.')
      } finally {
        leave()
      }
    },
    async settleFiles(session, signal) {
      const worker = table.find(session.tenantId, session.id)
      // Any other change of the files comes from a tool of the worker, and the worker settles the files around its tools.
      if (!worker?.sandbox || worker.phase !== 'awake' || !hasOwnTools(session) || !vfs?.of(session)) return undefined
      const { ok, content } = await worker.sandbox.channel.callTool(
        settleFilesTool,
        {},
        { signal, timeoutMs: settleFilesMs, vfs: true },
      )
      return ok && content !== '' ? content : undefined
    },
    leases: leases.list,
    lease: leases.one,
    invalidate: leases.invalidate,
    has: (session) => table.find(session.tenantId, session.id)?.sandbox !== undefined,
    countIn: (counter) => memory.countIn(counter),
    usage(tenantId) {
      const workspaceBytes = workspaces.used(tenantId)
      return {
        sandboxes: table.countOf(tenantId),
        ...(workspaceBytes === undefined ? {} : { workspaceBytes: finite(workspaceBytes) }),
      }
    },
    async release(session) {
      await table.remove(session)?.close(sandboxErrors.sessionShutdown())
    },
    sawProfile: pools.follow,
  }
}

/** True when the runtime is in the sandbox. Such a runtime may have tools that only its vendor knows. */
const hasOwnTools = ({ profile }: RunnerSession): boolean =>
  profile.workerMode === 'sandbox' && !restoredFromLog(profile.runtime)

const failed = (content: string): ToolResult => ({ ok: false, content })
/** Tools that only add files, so they are refused above the limit. A shell may delete files as well. */
const writing: ReadonlySet<string> = new Set(['write_file', 'run_script'])

/** From now on the worker may call models for this run, and its sandbox may reach hosts. Calls through this runner are measured. */
function measured(
  worker: SessionWorker,
  ready: PreparedRun,
  { budget, egress, onUsage }: SandboxOrder,
  { servers, egress: runs, metrics }: ServiceDeps,
): PreparedRun {
  const { tenantId, profile } = worker.session
  const calls = new ModelCalls({ model: profile.model, budget, counts: metrics, onUsage })
  worker.calls = calls
  const reached = egress && runs.open(egress, worker.session.id)
  worker.egress = reached
  const over = (): void => {
    calls.end()
    reached?.end()
    ready.over()
  }
  const server = servers.get(profile.model.slice(0, profile.model.indexOf('/')))
  return { ...ready, over, ...(server?.tenants.allows(tenantId) ? { calls } : {}) }
}

/** Makes a session's sandbox ready for a run, and reports its awake time since the previous run. */
async function prepare(
  worker: SessionWorker,
  resume: boolean,
  signal: AbortSignal,
  metrics: Metrics,
): Promise<PreparedRun> {
  // The check comes before the start, so that no sandbox is started in vain.
  if (resume && !worker.sandbox && !worker.state) throw sandboxErrors.sessionStateMissing()
  const leave = worker.uses.use()
  try {
    const awakeMs = worker.awake.ms
    const started = await unlessAborted(worker.ready(), signal)
    metrics.started(started)
    return prepared(worker, started, awakeMs, leave)
  } catch (error) {
    if (!signal.aborted) metrics.failed()
    leave()
    throw error
  }
}

/** The sandbox of a session whose runtime runs elsewhere. Only tools use it, and the first tool call starts it. */
function underWay(worker: SessionWorker | undefined): PreparedRun | undefined {
  if (!worker?.sandbox || worker.phase !== 'awake') return undefined
  const { sandbox, awake } = worker
  return prepared(worker, { sandbox, start: 'running', startMs: 0 }, awake.ms, worker.uses.use())
}

function prepared(
  worker: SessionWorker,
  { sandbox, start, startMs }: Started,
  awakeMs: number,
  leave: () => void,
): PreparedRun {
  worker.awake.settle()
  const message = sentences[start]
  let isOver = false
  return {
    event: {
      type: 'progress',
      stage: 'sandbox',
      provider: sandbox.substrate.name,
      start,
      startMs,
      idleSeconds: Math.round(awakeMs / 1_000),
      ...(message === undefined ? {} : { message }),
    },
    over() {
      if (isOver) return
      isOver = true
      // The awake time of a run is accounted for by the run itself.
      worker.awake.settle()
      leave()
    },
  }
}

const sentences: Readonly<Record<Start, string | undefined>> = {
  launched: 'A sandbox was started.',
  warm: 'A sandbox was ready.',
  resumed: 'The sandbox was resumed.',
  running: undefined,
}

/** The link to the worker of a session. The first use starts the sandbox. */
const linkOf = (session: RunnerSession, { table, launcher, vfs }: ServiceDeps): SidecarLink => ({
  /** Starts no sandbox: a session without one is healthy if it could have one. */
  async health(signal) {
    launcher.substrateFor(session.tenantId, session.profile)
    const worker = table.find(session.tenantId, session.id)
    if (worker?.sandbox && (await stateOf(worker.sandbox, signal)) === undefined)
      throw sandboxErrors.sandboxUnreachable()
    const { runtime } = session.profile
    const instance = worker?.sandbox?.sandboxId ?? ''
    const readsLinks = worker?.sandbox?.channel.readsLinks ?? false
    return { ok: true, runtime, runtimes: [runtime], instance, inflight: worker?.uses.count ? 1 : 0, readsLinks }
  },
  async *run(envelope, signal) {
    const worker = table.of(session)
    const leave = worker.uses.use()
    try {
      const { sandbox } = await unlessAborted(worker.ready(), signal)
      const { calls, egress } = worker
      if (!calls) throw new Error('a run was never prepared')
      const stop = AbortSignal.any([signal, worker.halting])
      const files = hasOwnTools(session) && vfs?.of(session) !== undefined
      yield* sandbox.channel.run(envelope, stop, { runnerUrl: sandbox.runnerUrl, calls, egress, vfs: files })
    } catch (error) {
      // A worker that answered with 409 is alive. After any other failure it may be gone, even if a connection of it seems open.
      if (!signal.aborted && !(isAppError(error) && error.status === 409)) worker.doubt()
      throw error
    } finally {
      leave()
    }
  },
  async exportState() {
    const worker = table.find(session.tenantId, session.id)
    // A paused worker is not resumed for this, because it uploaded its state before the pause.
    if (!worker?.sandbox || worker.phase === 'paused') {
      const refused = worker?.sandbox?.channel.stateRefused
      if (refused) throw refused
      return worker?.state
    }
    const leave = worker.uses.hold()
    try {
      return await worker.sandbox.channel.exportState()
    } finally {
      leave()
    }
  },
  hydrate: (_runtime, _sessionId, bundle) => table.of(session).replace(bundle),
  forget: async () => table.remove(session)?.close(sandboxErrors.sessionShutdown()),
})

/** Files that cannot be counted have an infinite size, and JSON has no infinity. */
const finite = (bytes: number): number => Math.min(bytes, Number.MAX_SAFE_INTEGER)

/** How long a reported state is cached, unless an event of the substrate invalidates it sooner. */
const freshMs = 3_000

/** The present sandboxes of sessions with their states, as the substrates report them. */
interface Leases {
  list(tenantId: string | undefined, signal?: AbortSignal): Promise<WorkerLease[]>
  one(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<WorkerLease | undefined>
  invalidate(provider: string, sandboxId: string): number
}

function createLeases(table: WorkerTable, workspaces: Workspaces, now: () => number = Date.now): Leases {
  /** An undefined state means that the substrate could not be reached. */
  const seen = new WeakMap<Sandbox, { readonly state: SandboxState | undefined; readonly at: number }>()

  const look = async (worker: SessionWorker, sandbox: Sandbox, signal?: AbortSignal): Promise<WorkerLease['state']> => {
    const cached = seen.get(sandbox)
    if (cached && now() - cached.at < freshMs) return cached.state ?? 'unknown'
    const state = await stateOf(sandbox, signal)
    seen.set(sandbox, { state, at: now() })
    if (state) worker.observe(sandbox, state)
    return state ?? 'unknown'
  }
  const leaseOf = async (worker: SessionWorker, signal?: AbortSignal): Promise<WorkerLease | undefined> => {
    const { session, sandbox, latest, phase } = worker
    if (phase === undefined) return undefined
    const sessionId = session.id
    const lastUsedAt = new Date(worker.uses.lastAt).toISOString()
    if (phase === 'starting') return { sessionId, state: 'starting', lastUsedAt }
    const shown = (sandbox ?? latest)!
    const { template } = shown.order
    const workspaceBytes = workspaces.sizeOf(worker)
    return {
      sessionId,
      state: sandbox ? await look(worker, sandbox, signal) : 'gone',
      provider: shown.substrate.name,
      sandboxId: shown.sandboxId,
      ...(template === undefined ? {} : { template }),
      launchedAt: new Date(shown.launchedAt).toISOString(),
      lastUsedAt,
      ...(shown.warm ? { warm: true } : {}),
      ...(workspaceBytes === undefined ? {} : { workspaceBytes: finite(workspaceBytes) }),
    }
  }
  return {
    async list(tenantId, signal) {
      const wanted = table.all().filter(({ session }) => tenantId === undefined || session.tenantId === tenantId)
      const leases = await Promise.all(wanted.map((worker) => leaseOf(worker, signal)))
      return leases.filter((lease) => lease !== undefined)
    },
    async one(tenantId, sessionId, signal) {
      const worker = table.find(tenantId, sessionId)
      return worker && leaseOf(worker, signal)
    },
    invalidate(provider, sandboxId) {
      let count = 0
      for (const worker of table.all()) {
        const { sandbox } = worker
        if (sandbox?.substrate.name !== provider || sandbox.sandboxId !== sandboxId) continue
        seen.delete(sandbox)
        worker.doubt()
        count++
      }
      return count
    },
  }
}
