import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { RunnerDelegations } from '#contracts/delegation'
import { newSessionId } from '#contracts/ids'
import type { Profile } from '#contracts/profiles'
import type { RunnerInfo, RunnerService, RunnerSessions } from '#contracts/runner'
import type { Sidecars } from '#contracts/sidecar'
import type { Toolkit } from '#contracts/tools'
import type { SandboxWorkers } from '#contracts/workers'
import { BroadcastBook } from './broadcast.ts'
import { Conversations } from './conversations.ts'
import { runnerDraining, unknownProfile } from './errors.ts'
import { createSessionLinks, Forgetting, type SessionLinks } from './links.ts'
import { type Held, isElsewhere, type SessionLimits, SessionTable } from './sessions.ts'
import { createToolCalls, Ledgers } from './tool-calls.ts'
import { createTopology } from './topology.ts'
import { Turns } from './turns.ts'

const drainTickMs = 25
/** A runner that no conductor has asked for this long waits for none to fetch what it has. */
const nobodyMs = 10_000

export interface RunnerOptions {
  readonly sidecars: Sidecars
  /** Undefined: this runner has no sandboxes. */
  readonly sandboxes: SandboxWorkers | undefined
  /** Undefined: no tool of this runner delegates. */
  readonly delegations: RunnerDelegations | undefined
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

/** What the links of a runner share. */
interface Parts extends RunnerOptions {
  readonly broadcast: BroadcastBook
  readonly table: SessionTable
  readonly links: SessionLinks
  readonly forgetting: Forgetting
  readonly ledgers: Ledgers
  readonly conversations: Conversations
  readonly turns: Turns
  create(tenantId: string, id: string, profile: Profile): Held
  isDraining(): boolean
}

export function createRunner(options: RunnerOptions): Runner {
  const { sidecars, sandboxes, toolkit, log } = options
  let draining = false
  let lastAsked = -Infinity
  const links = createSessionLinks(sidecars, sandboxes)
  /** Best effort: a sidecar forgets idle sessions by itself too. */
  const forgetting = new Forgetting(async (session) => {
    try {
      await links.forget(session)
    } catch (err) {
      log.warn({ err, sessionId: session.id }, 'a sidecar was not told to forget a session')
    }
  })
  const table = new SessionTable({ ...options.limits, onEvict: (session) => forgetting.begin(session) })
  const ledgers = new Ledgers()
  const create = (tenantId: string, id: string, profile: Profile): Held =>
    table.create(tenantId, id, profile, Object.freeze(toolkit.specs(profile.tools).map((spec) => spec.name)))
  const isDraining = (): boolean => draining
  const conversations = new Conversations({ table, links, forgetting, create, isDraining })
  const { mcpBaseUrl } = options
  const turns = new Turns({ table, links, ledgers, conversations, forgetting, create, isDraining, mcpBaseUrl, log })
  const broadcast = new BroadcastBook((...change) => sandboxes?.sawProfile(...change))
  const parts = { ...options, broadcast, table, links, forgetting, ledgers, conversations, turns, create, isDraining }
  const service = createService(parts)
  return {
    link: service(() => {}),
    core: service(() => (lastAsked = Date.now())),
    sessions: {
      get: (id) => table.any(id),
      list: () => [...table.all()],
      toolSpecs: (session) => toolkit.specs(session.tools),
      invokeTool: createToolCalls(toolkit, (session) => turns.of(session), ledgers, sandboxes),
    },
    sweep: () => table.sweep(),
    async drain(ms) {
      draining = true
      const until = Date.now() + ms
      const anyHere = (): boolean =>
        Date.now() - lastAsked < nobodyMs && [...table.all()].some((session) => !isElsewhere(session, Date.now()))
      while (Date.now() < until && (turns.busy || anyHere())) await sleep(drainTickMs)
    },
    stop: () => turns.stop(),
  }
}

/** `asked` is told when somebody asks the runner how it is. */
function createService(parts: Parts): (asked: () => void) => RunnerService {
  const { table, links, turns, broadcast, conversations, sidecars, sandboxes, delegations } = parts
  const info = createInfo(parts)
  const topology = createTopology(sidecars, () => table.all())
  return (asked) => ({
    get hash() {
      return parts.hash()
    },
    info() {
      asked()
      return info()
    },
    takeBroadcast: async (tenantId, page) => broadcast.take(tenantId, page),
    behind: async (revisions) => broadcast.behind(revisions),
    putProfile: async (tenantId, profile) => broadcast.putProfile(tenantId, profile),
    deleteProfile: async (tenantId, name) => broadcast.deleteProfile(tenantId, name),
    profiles: (tenantId) => broadcast.profiles(tenantId),
    putPool: async (tenantId, pool) => broadcast.putPool(tenantId, pool),
    deletePool: async (tenantId, id) => broadcast.deletePool(tenantId, id),
    pools: (tenantId) => broadcast.pools(tenantId),
    createSession(tenantId, name) {
      const profile = broadcast.profile(tenantId, name)
      if (!profile) throw unknownProfile()
      if (parts.isDraining()) throw runnerDraining({ retryable: true })
      let id = newSessionId(parts.hash())
      // 32 random bits do collide in a full table.
      while (table.any(id)) id = newSessionId(parts.hash())
      return parts.create(tenantId, id, profile)
    },
    getSession: async (tenantId, id) => table.find(tenantId, id),
    async checkSession(session) {
      await links.of(session).health()
    },
    async deleteSession(tenantId, id) {
      const session = table.find(tenantId, id)
      if (!session) return
      table.remove(session)
      parts.ledgers.drop(session)
      const turn = turns.of(session)
      turn?.end('session_shutdown')
      void Promise.resolve(turn?.over).then(() => parts.forgetting.begin(session))
    },
    hydrate: (tenantId, id, profile, bundle, replace = false) =>
      conversations.hydrate(tenantId, id, profile, bundle, replace),
    exportState: (tenantId, id) => conversations.exportState(tenantId, id),
    unsaved: async () => conversations.unsaved(),
    topology,
    workerLeases: async (tenantId, signal) => (await sandboxes?.leases(tenantId, signal)) ?? [],
    workerLease: async (tenantId, id, signal) => sandboxes?.lease(tenantId, id, signal),
    invalidateSandbox: async (provider, sandboxId) => sandboxes?.invalidate(provider, sandboxId) ?? 0,
    delegations: async (tenantId, id) => delegations?.take(tenantId, id) ?? [],
    async answerDelegation(tenantId, sessionId, id, answer) {
      delegations?.answer(tenantId, sessionId, id, answer)
    },
    // This runner has no VFS manager.
    vfsLeases: async () => [],
    vfsLease: async () => undefined,
    execute: (tenantId, run, signal) => turns.execute(tenantId, run, signal),
    attach: (tenantId, from, signal) => turns.attach(tenantId, from, signal),
    cancelRun: (tenantId, runId) => turns.cancel(tenantId, runId),
  })
}

function createInfo({ sidecars, sandboxes, table, turns, isDraining, ...options }: Parts): () => Promise<RunnerInfo> {
  const instance = randomUUID()
  return async () => {
    const capabilities = options.capabilities.length > 0 ? options.capabilities : await sidecars.runtimes()
    const missing = sidecars.slots().flatMap(({ runtime, missing: why }) => (why === undefined ? [] : [[runtime, why]]))
    return {
      hash: options.hash(),
      instance,
      state: isDraining() ? 'draining' : 'live',
      capabilities: [...capabilities],
      // An empty list means "all of them" to a conductor, so a runner whose sidecars did not answer must not seem to say so.
      capabilitiesKnown: capabilities.length > 0,
      ...(missing.length > 0 ? { missing: Object.fromEntries(missing) as Record<string, string> } : {}),
      substrates: [...(sandboxes?.substrates ?? [])],
      ...(sandboxes?.defaultSubstrate === undefined ? {} : { defaultSubstrate: sandboxes.defaultSubstrate }),
      substratesKnown: true,
      activeSessions: table.size,
      activeRuns: turns.size,
    }
  }
}
