import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { RunnerDelegations } from '#contracts/delegation'
import { newSessionId, runnerHash } from '#contracts/ids'
import type { RunnerInfo, RunnerService } from '#contracts/runner'
import { BroadcastBook } from './broadcast.ts'
import type { Conversations } from './conversations.ts'
import { unknownProfile } from './errors.ts'
import { type Executors, isElsewhere, linkOf, type SessionTable } from './sessions.ts'
import { createTopology } from './topology.ts'
import type { Turns } from './turns.ts'

const drainTickMs = 25
/** A runner that no conductor has asked for this long waits for none to fetch what it has. */
const nobodyMs = 10_000

/** What a runner is made of. */
interface Parts extends Executors {
  /** Undefined: no tool of this runner delegates. */
  readonly delegations: RunnerDelegations | undefined
  readonly table: SessionTable
  readonly conversations: Conversations
  readonly turns: Turns
  /** Known once the kernel listens. */
  readonly baseUrl: () => string
  /** Runtimes this runner announces; empty: those that its sidecars report. */
  readonly capabilities: readonly string[]
}

export function createRunner(parts: Parts) {
  const { table, turns } = parts
  const service = createService(parts)
  let lastAsked = -Infinity
  return {
    /** For a conductor in this process, which saves what it has before this runner stops. */
    link: service(() => {}),
    /** The same for everybody on the network: whoever asks it is waited for. */
    core: service(() => (lastAsked = Date.now())),
    /**
     * Takes nothing new, and resolves when its runs are over and conductors have fetched every conversation that changed, or
     * after `ms`. What then still runs is stopped.
     */
    async drain(ms: number): Promise<void> {
      table.draining = true
      const until = Date.now() + ms
      const anyHere = (): boolean =>
        Date.now() - lastAsked < nobodyMs && [...table.all()].some((session) => !isElsewhere(session, Date.now()))
      while (Date.now() < until && (turns.busy || anyHere())) await sleep(drainTickMs)
    },
  }
}

/** `asked` is told when somebody asks the runner how it is. */
function createService(parts: Parts): (asked: () => void) => RunnerService {
  const { table, turns, conversations, sidecars, sandboxes, delegations } = parts
  let known: string | undefined
  const hash = (): string => (known ??= runnerHash(parts.baseUrl()))
  const instance = randomUUID()
  const info = async (): Promise<RunnerInfo> => {
    const capabilities = parts.capabilities.length > 0 ? parts.capabilities : await sidecars.runtimes()
    const missing = sidecars.slots().flatMap(({ runtime, missing: why }) => (why === undefined ? [] : [[runtime, why]]))
    return {
      hash: hash(),
      instance,
      state: table.draining ? 'draining' : 'live',
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
  const topology = createTopology(sidecars, () => table.all())
  const broadcast = new BroadcastBook((...change) => sandboxes?.sawProfile(...change))
  return (asked) => ({
    get hash() {
      return hash()
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
      let id = newSessionId(hash())
      // 32 random bits do collide in a full table.
      while (table.any(id)) id = newSessionId(hash())
      return table.create(tenantId, id, profile)
    },
    getSession: async (tenantId, id) => table.find(tenantId, id),
    checkSession: async (session) => void (await linkOf(parts, session).health()),
    async deleteSession(tenantId, id) {
      const session = table.find(tenantId, id)
      if (!session) return
      table.remove(session)
      void turns.shutdown(session).then(() => conversations.forget(session))
    },
    hydrate: conversations.hydrate,
    exportState: conversations.exportState,
    unsaved: async () => conversations.unsaved(),
    topology,
    workerLeases: async (tenantId, signal) => (await sandboxes?.leases(tenantId, signal)) ?? [],
    workerLease: async (tenantId, id, signal) => sandboxes?.lease(tenantId, id, signal),
    invalidateSandbox: async (provider, sandboxId) => sandboxes?.invalidate(provider, sandboxId) ?? 0,
    delegations: async (tenantId, id) => delegations?.take(tenantId, id) ?? [],
    answerDelegation: async (...answer) => void delegations?.answer(...answer),
    // This runner has no VFS manager.
    vfsLeases: async () => [],
    vfsLease: async () => undefined,
    execute: turns.execute,
    attach: turns.attach,
    cancelRun: turns.cancel,
  })
}
