import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { newSessionId } from '#contracts/ids'
import type { Profile } from '#contracts/profiles'
import type { ExecuteRun, RunnerInfo, RunnerService, RunnerSessions } from '#contracts/runner'
import type { StateBundle } from '#contracts/runtime'
import type { Sidecars } from '#contracts/sidecar'
import type { ToolContext, Toolkit } from '#contracts/tools'
import {
  attemptSuperseded,
  runnerDraining,
  sessionBusy,
  toolNotAllowed,
  unknownProfile,
  unknownSession,
} from './errors.ts'
import { type StartedTurn, startTurn, type Turn } from './execute.ts'
import { createBroadcastBook } from './broadcast.ts'
import { createForgetting } from './forgetting.ts'
import { createLedgers } from './ledger.ts'
import { createPoolBook } from './pools.ts'
import { createProfileBook } from './profiles.ts'
import { createSessionTable, type Held, isElsewhere, isUnsaved, type SessionLimits } from './sessions.ts'
import { createTopology } from './topology.ts'

const drainTickMs = 25
/** A runner that no conductor has asked for this long waits for none to fetch what it has. */
const nobodyMs = 10_000

export interface RunnerOptions {
  readonly sidecars: Sidecars
  readonly toolkit: Toolkit
  /** Known once the kernel listens. */
  readonly hash: () => string
  /** Under which sidecars reach the session MCP endpoint. */
  readonly mcpBaseUrl: () => string
  /** Runtimes this runner announces; empty: those that its sidecars report. */
  readonly capabilities: readonly string[]
  readonly limits: Omit<SessionLimits, 'onEvict'>
  readonly log: { warn(fields: object, message: string): void }
}

export interface Runner {
  /** For a conductor in this process, which saves what it has before this runner stops. */
  readonly link: RunnerService
  /** The same for everybody on the network: whoever asks it is waited for. */
  readonly core: RunnerService
  readonly sessions: RunnerSessions
  sweep(): void
  /**
   * Takes nothing new, and resolves when its runs are over and conductors have fetched every conversation that changed, or
   * after `ms`. What then still runs is for `stop`.
   */
  drain(ms: number): Promise<void>
  /** Ends every run under way with `runner_stopping`. */
  stop(): Promise<void>
}

export function createRunner(options: RunnerOptions): Runner {
  const { sidecars, toolkit, log } = options
  const instance = randomUUID()
  const profiles = createProfileBook()
  const pools = createPoolBook()
  const broadcast = createBroadcastBook(profiles, pools)
  const turns = new Map<Held, Turn>()
  const hydrating = new Map<Held, Promise<void>>()
  const ledgers = createLedgers()
  let draining = false
  let lastAsked = -Infinity
  /** Best effort: a sidecar forgets idle sessions by itself too. */
  const forgetting = createForgetting(async ({ id, profile: { runtime } }) => {
    try {
      await sidecars.forRuntime(runtime).forget(runtime, id)
    } catch (err) {
      log.warn({ err, sessionId: id }, 'a sidecar was not told to forget a session')
    }
  })
  const table = createSessionTable({ ...options.limits, onEvict: forgetting.begin })
  const create = (tenantId: string, id: string, profile: Profile): Held =>
    table.create(tenantId, id, profile, Object.freeze(toolkit.specs(profile.tools).map((spec) => spec.name)))

  const begin = (tenantId: string, run: ExecuteRun): StartedTurn => {
    let session = table.find(tenantId, run.sessionId)
    if (!session) {
      if (!run.create) throw unknownSession()
      if (draining) throw runnerDraining({ retryable: true })
      session = create(tenantId, run.sessionId, run.create.profile)
    }
    const former = turns.get(session)
    // Whoever held this run before was given up; it may be frozen, and then nobody reads its stream to the end.
    if (former && session.activeRunId === run.runId && (run.attempt ?? 1) > former.attempt) former.supersede()
    if (session.status === 'running' || hydrating.has(session)) throw sessionBusy()
    // It goes on elsewhere from its saved state; one that is not saved yet goes on here, where its conversation is.
    if (draining && isElsewhere(session, Date.now())) throw runnerDraining({ retryable: true })
    const held = session
    if (held.profile.onCrash === 'retry' && !ledgers.open(held, run)) throw attemptSuperseded()
    const turn = startTurn({
      session: held,
      run,
      sidecar: () => sidecars.forRuntime(held.profile.runtime),
      sessionMcpUrl: held.tools.length === 0 ? undefined : `${options.mcpBaseUrl()}/runner/sessions/${held.id}/mcp`,
      onFree(status) {
        if (held.status !== 'shutdown') {
          held.status = status
          table.touch(held)
        }
        delete held.activeRunId
      },
      onStateMissing() {
        // As if this runner had never had the session: the conductor hydrates it and asks again.
        table.remove(held)
        return unknownSession()
      },
      log,
    })
    held.status = 'running'
    held.activeRunId = run.runId
    table.touch(held)
    turns.set(held, turn)
    return turn
  }

  const bring = async (session: Held, bundle: StateBundle, told: Promise<void> | undefined): Promise<void> => {
    const { runtime } = session.profile
    try {
      await told
      await sidecars.forRuntime(runtime).hydrate(runtime, session.id, bundle)
      session.conversation = true
    } catch (error) {
      table.remove(session)
      throw error
    }
  }

  const topology = createTopology(sidecars, () => table.all())
  /** An old conversation was here, and the newest one is empty. */
  const empty = async (session: Held): Promise<void> => {
    const { runtime } = session.profile
    try {
      await sidecars.forRuntime(runtime).forget(runtime, session.id)
    } catch (error) {
      table.remove(session)
      throw error
    }
  }

  const link: RunnerService = {
    get hash() {
      return options.hash()
    },
    async info(): Promise<RunnerInfo> {
      const capabilities = options.capabilities.length > 0 ? options.capabilities : await sidecars.runtimes()
      // An empty list means "all of them" to a conductor, so a runner whose sidecars did not answer must not seem to say so.
      const capabilitiesKnown = capabilities.length > 0
      return {
        hash: options.hash(),
        instance,
        state: draining ? 'draining' : 'live',
        capabilities: [...capabilities],
        capabilitiesKnown,
        substrates: [],
        substratesKnown: true,
        activeSessions: table.size,
        activeRuns: turns.size,
      }
    },
    takeBroadcast: async (tenantId, page) => broadcast.take(tenantId, page),
    behind: async (revisions) => broadcast.behind(revisions),
    async putProfile(tenantId, profile) {
      profiles.put(tenantId, profile)
    },
    async deleteProfile(tenantId, name) {
      profiles.delete(tenantId, name)
    },
    profiles: (tenantId) => profiles.list(tenantId),
    async putPool(tenantId, pool) {
      pools.put(tenantId, pool)
    },
    async deletePool(tenantId, id) {
      pools.delete(tenantId, id)
    },
    pools: (tenantId) => pools.list(tenantId),
    createSession(tenantId, name) {
      const profile = profiles.get(tenantId, name)
      if (!profile) throw unknownProfile()
      if (draining) throw runnerDraining({ retryable: true })
      let id = newSessionId(options.hash())
      // 32 random bits do collide in a full table.
      while (table.any(id)) id = newSessionId(options.hash())
      return create(tenantId, id, profile)
    },
    getSession: async (tenantId, id) => table.find(tenantId, id),
    async deleteSession(tenantId, id) {
      const session = table.find(tenantId, id)
      if (!session) return
      table.remove(session)
      ledgers.drop(session)
      const turn = turns.get(session)
      turn?.end('session_shutdown')
      void Promise.resolve(turn?.over).then(() => forgetting.begin(session))
    },
    async hydrate(tenantId, id, profile, bundle, replace = false) {
      const present = table.find(tenantId, id)
      // Whoever comes second must not be told "ready" while the first one is still bringing the conversation.
      if (present && !replace) return hydrating.get(present)
      if (draining) throw runnerDraining({ retryable: true })
      if (present) {
        if (present.status === 'running' || hydrating.has(present)) throw sessionBusy()
        table.remove(present)
      }
      const session = create(tenantId, id, profile)
      if (bundle?.runtimeSessionId !== undefined) session.runtimeSessionId = bundle.runtimeSessionId
      const told = forgetting.finish(id)
      const bringing = bundle ? bring(session, bundle, told) : present ? empty(session) : told
      if (!bringing) return
      hydrating.set(session, bringing)
      await bringing.finally(() => hydrating.delete(session))
    },
    async exportState(tenantId, id) {
      const session = table.find(tenantId, id)
      if (!session) throw unknownSession()
      const { runtime } = session.profile
      const { changes } = session
      const bundle = await sidecars.forRuntime(runtime).exportState(runtime, id)
      // A run that ended meanwhile is not in it, or not whole.
      session.exported = Math.max(session.exported, changes)
      session.exportedAt = Date.now()
      if (!bundle || bundle.runtimeSessionId !== undefined || session.runtimeSessionId === undefined) return bundle
      return { ...bundle, runtimeSessionId: session.runtimeSessionId }
    },
    unsaved: async () =>
      [...table.all()].filter(isUnsaved).map(({ tenantId, id: sessionId }) => ({ tenantId, sessionId })),
    topology,
    // This runner has neither a worker substrate nor a VFS manager.
    workerLeases: async () => [],
    workerLease: async () => undefined,
    invalidateSandbox: async () => 0,
    vfsLeases: async () => [],
    vfsLease: async () => undefined,
    cancelRun(tenantId, runId) {
      for (const [session, turn] of turns) {
        if (session.tenantId === tenantId && session.activeRunId === runId) turn.end('cancelled')
      }
    },
    async *execute(tenantId, run, signal) {
      if (signal.aborted) return
      const turn = begin(tenantId, run)
      const onAbort = (): void => turn.end(signal.reason === 'shutdown' ? 'runner_stopping' : 'cancelled')
      signal.addEventListener('abort', onAbort, { once: true })
      try {
        yield* turn.chunks
      } finally {
        signal.removeEventListener('abort', onAbort)
        if (turns.get(turn.session) === turn) turns.delete(turn.session)
      }
    },
  }

  const sessions: RunnerSessions = {
    get: (id) => table.any(id),
    list: () => [...table.all()],
    toolSpecs: (session) => toolkit.specs(session.tools),
    async invokeTool(session, name, input, signal, callId) {
      if (!session.tools.includes(name)) {
        throw toolNotAllowed({ message: `The tool '${name}' is not in this session's toolkit.` })
      }
      const turn = turns.get(session as Held)
      const runId = session.activeRunId ?? ''
      const ledger = runId === '' ? undefined : ledgers.of(session)
      // A cancelled run stops the tool it is waiting for, whoever holds the connection. A connection that breaks under a run
      // that is tried again stops nothing: the next attempt gets the result.
      const stop = !turn ? signal : ledger ? turn.signal : AbortSignal.any([signal, turn.signal])
      const context: ToolContext = {
        tenantId: session.tenantId,
        sessionId: session.id,
        profileName: session.profile.name,
        runId,
        depth: 0,
        signal: stop,
        ...(runId === '' || callId === undefined ? {} : { idempotencyKey: `${runId}:${callId}` }),
      }
      if (!ledger) return toolkit.invoke(name, input, context)
      return ledger.call(name, input, callId, async () => {
        const result = await toolkit.invoke(name, input, context)
        return { result, finished: result.ok || !stop.aborted }
      })
    },
  }

  const core = Object.create(link, {
    info: {
      value: () => {
        lastAsked = Date.now()
        return link.info()
      },
    },
  }) as RunnerService

  return {
    link,
    core,
    sessions,
    sweep: () => table.sweep(),
    async drain(ms) {
      draining = true
      const until = Date.now() + ms
      const anyHere = (): boolean =>
        Date.now() - lastAsked < nobodyMs && [...table.all()].some((session) => !isElsewhere(session, Date.now()))
      while (Date.now() < until && (turns.size > 0 || anyHere())) await sleep(drainTickMs)
    },
    async stop() {
      const ending = [...turns.values()]
      for (const turn of ending) turn.end('runner_stopping')
      await Promise.all(ending.map((turn) => turn.over))
    },
  }
}
