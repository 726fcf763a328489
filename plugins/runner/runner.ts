import { randomUUID } from 'node:crypto'
import { availableParallelism } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Delegations } from '#contracts/delegation'
import { isClientId, newSessionId, runnerHash } from '#contracts/ids'
import type { WrittenObjects } from '#contracts/object-writes'
import type { RunnerInfo, RunnerLink, RunnerSession, RunnerSessions, RunnerTopology } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { SidecarHealth, SidecarLink, Sidecars } from '#contracts/sidecar'
import { usesVfs } from '#contracts/session-vfs'
import type { SkillCache } from '#contracts/skills'
import type { BroadcastReceiver } from './broadcast.ts'
import type { Conversations } from './conversations.ts'
import type { Runs } from './runs.ts'
import { canMove, type Executors, type SessionTable } from './sessions.ts'

const drainTickMs = 25
/** Milliseconds. When no conductor has asked for this long, a stopping runner does not wait for its conversations to be fetched. */
const nobodyMs = 10_000

/** The parts of a runner. */
interface RunnerParts {
  readonly executors: Executors
  /** Tool calls that wait for a run of another profile. */
  readonly waiting: Delegations
  readonly table: SessionTable
  readonly conversations: Conversations
  readonly runs: Runs
  readonly broadcast: BroadcastReceiver
  /** Undefined: this runner keeps no skills. */
  readonly skills: SkillCache | undefined
  /** What agents wrote to the object store with this runner's tools. Undefined: no tool here writes. */
  readonly written: WrittenObjects | undefined
  /** Known once the kernel listens. */
  readonly baseUrl: () => string
  /** Settles when `baseUrl` is known: a listener has its port when it listens. */
  readonly listening: Promise<void>
  /** The runtimes that this runner announces. Empty: those that its sidecars report. */
  readonly capabilities: readonly string[]
  /** Names of its tools. */
  readonly tools: readonly string[]
  readonly callTool: RunnerSessions['invokeTool']
}

/** One runner. A conductor in this process has it as its link; the routes serve it to all others. */
export interface Runner extends RunnerLink, RunnerParts {
  /** When a conductor on the network last asked for this runner's state. A stopping runner only waits for conductors that ask. */
  askedAt: number
  /** A new session under an id of this runner. Throws AppError 404 `unknown_profile` when the profile was never broadcast here. */
  createSession(tenantId: string, profileName: string): RunnerSession
}

const notHere = (): never => {
  throw runnerErrors.unknownSession()
}

export function createRunner(parts: RunnerParts): Runner {
  const { table, runs, conversations, broadcast, waiting } = parts
  const { sidecars, sandboxes, vfs } = parts.executors
  const instance = randomUUID()
  let hash: string | undefined
  const info = async (): Promise<RunnerInfo> => {
    await parts.listening
    const capabilities = parts.capabilities.length > 0 ? parts.capabilities : await sidecars.runtimes()
    const missing = sidecars.slots().flatMap(({ runtime, missing: why }) => (why === undefined ? [] : [[runtime, why]]))
    return {
      hash: runner.hash,
      instance,
      state: table.draining ? 'draining' : 'live',
      capabilities: [...capabilities],
      // To a conductor an empty list means "all runtimes", so a runner whose sidecars did not answer must say that it does not know.
      capabilitiesKnown: capabilities.length > 0,
      ...(missing.length > 0 ? { missing: Object.fromEntries(missing) as Record<string, string> } : {}),
      substrates: [...(sandboxes?.substrates ?? [])],
      ...(sandboxes?.defaultSubstrate === undefined ? {} : { defaultSubstrate: sandboxes.defaultSubstrate }),
      substratesKnown: true,
      tools: [...parts.tools],
      activeSessions: table.size,
      activeRuns: runs.size,
    }
  }
  const runner: Runner = {
    ...parts,
    askedAt: -Infinity,
    get hash() {
      return (hash ??= runnerHash(parts.baseUrl()))
    },
    info,
    topology: createTopology(sidecars, table),
    usage: async (tenantId) => ({
      stateBytes: table.bytesOf(tenantId),
      ...(sandboxes?.usage(tenantId) ?? { sandboxes: 0 }),
    }),
    takeBroadcast: async (tenantId, page) => broadcast.take(tenantId, page),
    behind: async (revisions) => broadcast.behind(revisions),
    createSession(tenantId, name) {
      const profile = broadcast.profile(tenantId, name)
      if (!profile) throw runnerErrors.unknownProfile()
      let id = newSessionId(runner.hash)
      // 32 random bits collide now and then in a full table.
      while (table.any(id)) id = newSessionId(runner.hash)
      return table.create(tenantId, id, profile)
    },
    getSession: async (tenantId, id) => table.find(tenantId, id),
    deleteSession: (tenantId, id) => deleteSession(parts, tenantId, id),
    hydrate: conversations.hydrate,
    exportState: conversations.exportState,
    invokeTool: async (tenantId, id, { name, input, callId }, signal) =>
      parts.callTool(table.find(tenantId, id) ?? notHere(), name, input, signal, callId),
    async putSkill(tenantId, skill) {
      if (!parts.skills) throw runnerErrors.skillsNotKept()
      parts.skills.put(tenantId, skill)
    },
    unsaved: conversations.unsaved,
    execute: runs.execute,
    attach: runs.attach,
    workerLeases: async (tenantId, signal) => (await sandboxes?.leases(tenantId, signal)) ?? [],
    workerLease: async (tenantId, id, signal) => sandboxes?.lease(tenantId, id, signal),
    invalidateSandbox: async (provider, sandboxId) => sandboxes?.invalidate(provider, sandboxId) ?? 0,
    delegations: async (tenantId, id) => waiting.take(tenantId, id),
    objectWrites: async (tenantId, _sessionId, runId, after) => parts.written?.of({ tenantId, runId }, after) ?? [],
    answerDelegation: async (...answer) => void waiting.answer(...answer),
    vfsLeases: async (tenantId) => vfs?.leases(tenantId) ?? [],
    vfsLease: async (tenantId, id, signal) => vfs?.lease(tenantId, id, signal),
  }
  return runner
}

/** Ends a session, with its files on the VirtualFS server: whoever erases a session has to know that these are gone. */
async function deleteSession(
  { executors: { vfs }, table, runs, conversations }: RunnerParts,
  tenantId: string,
  id: string,
): Promise<void> {
  const session = table.find(tenantId, id)
  // A session that is not in memory may have files from before a restart, or of which the server was not told.
  if (!session) return isClientId(id) ? vfs?.close(tenantId, id) : undefined
  const isIdle = session.activeRunId === undefined
  table.remove(session)
  const close = async (): Promise<void> => {
    if (usesVfs(session.profile)) await vfs?.close(tenantId, id)
  }
  const over = runs
    .shutdown(session)
    .then(close)
    .finally(() => conversations.forget(session))
  // The end of a run is not waited for.
  if (isIdle) await over
  else over.catch(() => {})
}

/**
 * Takes nothing new. Resolves when the runs are over and conductors have fetched every changed conversation, or after `ms`; runs that are still
 * under way are then stopped. A conductor in this process saves its conversations before its runner stops.
 */
export async function drain(runner: Runner, ms: number): Promise<void> {
  const { table, runs } = runner
  table.draining = true
  const until = Date.now() + ms
  const anyHere = (): boolean =>
    Date.now() - runner.askedAt < nobodyMs && [...table.all()].some((session) => !canMove(session, Date.now()))
  while (Date.now() < until && (runs.busy || anyHere())) await sleep(drainTickMs)
}

type Slot = RunnerTopology['sidecars'][number]

const probeMs = 1_000
/** Milliseconds for which a success counts as recent. Meanwhile a failed probe means `degraded`, not `unreachable`. */
const recentMs = 60_000

/** The state of this process, what it holds, and which sidecars it sees. */
export function createTopology(sidecars: Sidecars, table: SessionTable): () => Promise<RunnerTopology> {
  const lastSeen = new WeakMap<SidecarLink, { readonly health: SidecarHealth; readonly at: number }>()
  const probe = async (link: SidecarLink): Promise<Pick<Slot, 'state' | 'observedInstances'>> => {
    const health = await link.health(AbortSignal.timeout(probeMs)).catch(() => undefined)
    if (health) lastSeen.set(link, { health, at: Date.now() })
    const seen = lastSeen.get(link)
    if (!seen || (!health && Date.now() - seen.at > recentMs)) return { state: 'unreachable', observedInstances: null }
    const { instance, inflight } = seen.health
    return {
      state: health?.ok ? 'live' : 'degraded',
      // A foreign sidecar may not say which instance it is. None was observed in that case.
      observedInstances: instance === '' ? null : [{ instance, inflight, lastSeenAt: new Date(seen.at).toISOString() }],
    }
  }
  return async () => {
    await sidecars.runtimes()
    // Each distinct sidecar is asked once, however many runtimes share it.
    const probes = new Map<SidecarLink, ReturnType<typeof probe>>()
    const slots = await Promise.all(
      sidecars.slots().map(async ({ runtime, mode, url }): Promise<Slot> => {
        if (mode === 'stub') return { runtime, kind: 'stub', state: 'stub', url, observedInstances: [] }
        const link = sidecars.forRuntime(runtime)
        const probing = probes.get(link) ?? probe(link)
        probes.set(link, probing)
        return { runtime, kind: 'sidecar', url, ...(await probing) }
      }),
    )
    const sessionsByRuntime = table.byRuntime()
    return { process: processSnapshot(), activeSessions: table.size, sessionsByRuntime, sidecars: slots }
  }
}

function processSnapshot(): RunnerTopology['process'] {
  const memory = process.memoryUsage()
  return {
    allocBytes: memory.heapUsed,
    sysBytes: memory.rss,
    heapInuseBytes: memory.heapTotal,
    // Node has no goroutines, and a zero would look like a measurement.
    numGoroutine: null,
    numCPU: availableParallelism(),
    uptimeSeconds: Math.round(process.uptime()),
  }
}
