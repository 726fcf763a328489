import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { RunnerDelegations } from '#contracts/delegation'
import { newSessionId } from '#contracts/ids'
import type { Profile } from '#contracts/profiles'
import type { RunnerInfo, RunnerService, RunnerSessions } from '#contracts/runner'
import type { Sidecars } from '#contracts/sidecar'
import type { Toolkit } from '#contracts/tools'
import type { SandboxWorkers } from '#contracts/workers'
import { createBroadcastBook } from './broadcast.ts'
import { createConversations } from './conversations.ts'
import { runnerDraining, unknownProfile } from './errors.ts'
import { createForgetting } from './forgetting.ts'
import { createLedgers } from './ledger.ts'
import { createSessionLinks } from './links.ts'
import { createPoolBook } from './pools.ts'
import { createProfileBook } from './profiles.ts'
import { createSessionTable, type Held, isElsewhere, type SessionLimits } from './sessions.ts'
import { createToolCalls } from './tool-calls.ts'
import { createTopology } from './topology.ts'
import { createTurns } from './turns.ts'

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

export function createRunner(options: RunnerOptions): Runner {
  const { sidecars, sandboxes, delegations, toolkit, log } = options
  const instance = randomUUID()
  const profiles = createProfileBook((...change) => sandboxes?.sawProfile(...change))
  const pools = createPoolBook()
  const broadcast = createBroadcastBook(profiles, pools)
  const ledgers = createLedgers()
  const links = createSessionLinks(sidecars, sandboxes)
  let draining = false
  let lastAsked = -Infinity
  /** Best effort: a sidecar forgets idle sessions by itself too. */
  const forgetting = createForgetting(async (session) => {
    try {
      await links.forget(session)
    } catch (err) {
      log.warn({ err, sessionId: session.id }, 'a sidecar was not told to forget a session')
    }
  })
  const table = createSessionTable({ ...options.limits, onEvict: forgetting.begin })
  const create = (tenantId: string, id: string, profile: Profile): Held =>
    table.create(tenantId, id, profile, Object.freeze(toolkit.specs(profile.tools).map((spec) => spec.name)))
  const isDraining = (): boolean => draining
  const conversations = createConversations({ table, links, forgetting, create, isDraining })
  const { isComing } = conversations
  const { mcpBaseUrl } = options
  const turns = createTurns({
    table,
    links,
    ledgers,
    create,
    isComing,
    isDraining,
    mcpBaseUrl,
    forget: forgetting.begin,
    log,
  })

  const link: RunnerService = {
    get hash() {
      return options.hash()
    },
    async info(): Promise<RunnerInfo> {
      const capabilities = options.capabilities.length > 0 ? options.capabilities : await sidecars.runtimes()
      // An empty list means "all of them" to a conductor, so a runner whose sidecars did not answer must not seem to say so.
      const capabilitiesKnown = capabilities.length > 0
      const missing = sidecars
        .slots()
        .flatMap(({ runtime, missing: why }) => (why === undefined ? [] : [[runtime, why]]))
      return {
        hash: options.hash(),
        instance,
        state: draining ? 'draining' : 'live',
        capabilities: [...capabilities],
        capabilitiesKnown,
        ...(missing.length > 0 ? { missing: Object.fromEntries(missing) as Record<string, string> } : {}),
        substrates: [...(sandboxes?.substrates ?? [])],
        ...(sandboxes?.defaultSubstrate === undefined ? {} : { defaultSubstrate: sandboxes.defaultSubstrate }),
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
    async checkSession(session) {
      await links.of(session).health()
    },
    async deleteSession(tenantId, id) {
      const session = table.find(tenantId, id)
      if (!session) return
      table.remove(session)
      ledgers.drop(session)
      const turn = turns.of(session)
      turn?.end('session_shutdown')
      void Promise.resolve(turn?.over).then(() => forgetting.begin(session))
    },
    hydrate: (tenantId, id, profile, bundle, replace = false) =>
      conversations.hydrate(tenantId, id, profile, bundle, replace),
    exportState: conversations.exportState,
    unsaved: async () => conversations.unsaved(),
    topology: createTopology(sidecars, () => table.all()),
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
    cancelRun: turns.cancel,
    execute: turns.execute,
  }

  const sessions: RunnerSessions = {
    get: (id) => table.any(id),
    list: () => [...table.all()],
    toolSpecs: (session) => toolkit.specs(session.tools),
    invokeTool: createToolCalls(toolkit, turns, ledgers, sandboxes),
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
    stop: turns.stop,
  }
}
