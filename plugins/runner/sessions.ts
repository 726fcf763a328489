import { isClientId } from '#contracts/ids'
import { type Profile, restoredFromLog } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { SidecarLink, Sidecars } from '#contracts/sidecar'
import type { SandboxWorkers } from '#contracts/workers'

/** A session as this plugin changes it; other plugins see it as the read-only `RunnerSession`. */
export type LiveSession = { -readonly [K in keyof RunnerSession]: RunnerSession[K] } & {
  usedAt: number
  /** The sidecar should hold a conversation: a run ended there, or a bundle was taken over. */
  conversation?: boolean
  /** The conversation is on its way; no run may begin before it is here. */
  hydrating: Promise<void> | undefined
  /** Counts the runs that may have changed the conversation, and how many of them the last export contained. */
  changes: number
  exported: number
  /** When that export was given out. */
  exportedAt?: number
}

/** True when only this process has the newest conversation: it would be lost with the process. */
export const isUnsaved = ({ profile, status, changes, exported }: LiveSession): boolean =>
  changes > exported && !restoredFromLog(profile.runtime) && status !== 'running' && status !== 'shutdown'

/** A conductor has stored an exported conversation by then. Until then the copy here counts as the only one. */
const storedMs = 1_000

/** True when another runner can take the session: its last export is whole, and stored by now. */
export const canMove = (session: LiveSession, now: number): boolean =>
  session.status !== 'running' && !isUnsaved(session) && now - (session.exportedAt ?? 0) > storedMs

/** Who executes the runs of this runner. */
export interface Executors {
  readonly sidecars: Sidecars
  /** Undefined: this runner has no sandboxes. */
  readonly sandboxes: SandboxWorkers | undefined
}

export const isWorker = ({ workerMode }: Profile): boolean => workerMode === 'sandbox'
/** True for a profile whose worker runs in a sandbox, or only its tools do. */
export const hasSandbox = (profile: Profile): boolean => isWorker(profile) || profile.sandbox !== undefined
/** Whoever executes the runs of a session. Throws AppError 503 when this runner has neither. */
export function linkOf({ sidecars, sandboxes }: Executors, session: RunnerSession): SidecarLink {
  if (!isWorker(session.profile)) return sidecars.forRuntime(session.profile.runtime)
  if (!sandboxes) throw runnerErrors.noSandboxSubstrate()
  return sandboxes.link(session)
}

interface TableOptions {
  readonly max: number
  readonly idleTtlMs: number
  /** What a session of this profile, which names some, may use. */
  readonly toolsOf: (profile: Profile) => readonly string[]
  /** A session left memory without being shut down: the conductor can hydrate it again. */
  readonly onEvict: (session: RunnerSession) => void
}

/** The sessions of one runner, by id, least recently used first. */
export class SessionTable {
  readonly #options: TableOptions
  // A Map keeps insertion order, so deleting and setting again moves a session to the recently used end.
  readonly #sessions = new Map<string, LiveSession>()
  /** The runner is about to stop: the table takes no new session. */
  draining = false

  constructor(options: TableOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#sessions.size
  }
  /** Undefined for an unknown session and for another tenant's. */
  find(tenantId: string, id: string): LiveSession | undefined {
    const session = this.#sessions.get(id)
    return session?.tenantId === tenantId ? session : undefined
  }
  /** The session of any tenant. */
  any(id: string): LiveSession | undefined {
    return this.#sessions.get(id)
  }
  all(): IterableIterator<LiveSession> {
    return this.#sessions.values()
  }
  /** How many sessions each runtime has. */
  byRuntime(): Record<string, number> {
    const counts: Record<string, number> = {}
    for (const { profile } of this.all()) counts[profile.runtime] = (counts[profile.runtime] ?? 0) + 1
    return counts
  }
  /** Throws `unknown_session` when another tenant has the id: the same answer as for no session. */
  create(tenantId: string, id: string, profile: Profile): LiveSession {
    if (this.draining) throw runnerErrors.runnerDraining()
    if (!isClientId(id)) throw runnerErrors.invalidSessionId()
    if (this.#sessions.has(id)) throw runnerErrors.unknownSession()
    this.#makeRoom()
    const usedAt = Date.now()
    const session: LiveSession = {
      id,
      tenantId,
      profile,
      tools: profile.tools.length === 0 ? [] : this.#options.toolsOf(profile),
      status: 'idle',
      createdAt: new Date(usedAt).toISOString(),
      usedAt,
      get lastUsedAt() {
        return new Date(this.usedAt).toISOString()
      },
      changes: 0,
      exported: 0,
      hydrating: undefined,
    }
    this.#sessions.set(id, session)
    return session
  }
  /** Marks a session as used now. */
  touch(session: LiveSession): void {
    session.usedAt = Date.now()
    this.#sessions.delete(session.id)
    this.#sessions.set(session.id, session)
  }
  /** A run begins in it. */
  occupy(session: LiveSession, runId: string): void {
    session.status = 'running'
    session.activeRunId = runId
    this.touch(session)
  }
  /** Its run is over. */
  free(session: LiveSession, status: 'idle' | 'errored'): void {
    delete session.activeRunId
    if (session.status === 'shutdown') return
    session.status = status
    this.touch(session)
  }
  remove(session: LiveSession): void {
    if (this.#sessions.get(session.id) === session) this.#sessions.delete(session.id)
    session.status = 'shutdown'
  }
  /** Evicts sessions that were idle for too long. */
  sweep(): void {
    const oldest = Date.now() - this.#options.idleTtlMs
    for (const session of this.#sessions.values()) {
      if (session.usedAt > oldest) break
      if (session.status !== 'running') this.#evict(session)
    }
  }
  #evict(session: LiveSession): void {
    this.remove(session)
    this.#options.onEvict(session)
  }
  #makeRoom(): void {
    if (this.#sessions.size < this.#options.max) return
    for (const session of this.#sessions.values()) {
      if (session.status !== 'running') return this.#evict(session)
    }
    throw runnerErrors.runnerFull()
  }
}

export const keyOf = (tenantId: string, sessionId: string): string => `${tenantId}\n${sessionId}`
