import { isClientId } from '#contracts/ids'
import { type Profile, restoredFromLog } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'
import type { SidecarLink, Sidecars } from '#contracts/sidecar'
import type { SandboxWorkers } from '#contracts/workers'
import { invalidSessionId, noSandboxSubstrate, runnerDraining, runnerFull, unknownSession } from './errors.ts'

/** The one mutable view of a session; everybody else holds it as `RunnerSession`. */
export type Held = { -readonly [K in keyof RunnerSession]: RunnerSession[K] } & {
  /** The sidecar should hold a conversation: a run ended there, or a bundle was taken over. */
  conversation?: boolean
  /** Until it is here no run may begin. */
  coming: Promise<void> | undefined
  /** Counts the runs that may have changed the conversation, and how many of them the last export contained. */
  changes: number
  exported: number
  /** When that export was given out. */
  exportedAt?: number
}

/** What this process alone knows would be lost with it. */
export const isUnsaved = ({ profile, status, changes, exported }: Held): boolean =>
  changes > exported && !restoredFromLog(profile.runtime) && status !== 'running' && status !== 'shutdown'

/** How long a conductor may take to store what it was given; until then this copy is the only one. */
const storedMs = 1_000

/** It can go on elsewhere: what was exported has been stored by now. */
export const isElsewhere = (session: Held, now: number): boolean =>
  session.status !== 'running' && !isUnsaved(session) && now - (session.exportedAt ?? 0) > storedMs

/** Who executes the runs of this runner. */
export interface Executors {
  readonly sidecars: Sidecars
  /** Undefined: this runner has no sandboxes. */
  readonly sandboxes: SandboxWorkers | undefined
}

export const isWorker = ({ workerMode }: Profile): boolean => workerMode === 'sandbox'
/** For its worker, or for its tools alone. */
export const hasSandbox = (profile: Profile): boolean => isWorker(profile) || profile.sandbox !== undefined
/** Whoever executes the runs of a session. Throws AppError 503 when this runner has neither. */
export function linkOf({ sidecars, sandboxes }: Executors, session: RunnerSession): SidecarLink {
  if (!isWorker(session.profile)) return sidecars.forRuntime(session.profile.runtime)
  if (!sandboxes) throw noSandboxSubstrate()
  return sandboxes.link(session)
}

interface TableOptions {
  readonly max: number
  readonly idleTtlMs: number
  readonly now?: () => number
  /** What a session of this profile, which names some, may use. */
  readonly toolsOf: (profile: Profile) => readonly string[]
  /** A session left memory without being shut down: the conductor can hydrate it again. */
  readonly onEvict: (session: RunnerSession) => void
}

/** The sessions of one runner, by id, least recently used first. */
export class SessionTable {
  readonly #options: TableOptions
  // A Map keeps insertion order, so deleting and setting again moves a session to the recently used end.
  readonly #sessions = new Map<string, Held>()
  readonly #usedAt = new WeakMap<Held, number>()
  /** The runner is about to stop: the table takes no new session. */
  draining = false

  constructor(options: TableOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#sessions.size
  }
  /** Undefined for an unknown session and for another tenant's. */
  find(tenantId: string, id: string): Held | undefined {
    const session = this.#sessions.get(id)
    return session?.tenantId === tenantId ? session : undefined
  }
  any(id: string): Held | undefined {
    return this.#sessions.get(id)
  }
  all(): IterableIterator<Held> {
    return this.#sessions.values()
  }
  /** Throws `unknown_session` when another tenant has the id: the same answer as for no session. */
  create(tenantId: string, id: string, profile: Profile): Held {
    if (this.draining) throw runnerDraining({ retryable: true })
    if (!isClientId(id)) throw invalidSessionId()
    if (this.#sessions.has(id)) throw unknownSession()
    this.#makeRoom()
    const at = new Date(this.#now()).toISOString()
    const used = { createdAt: at, lastUsedAt: at, changes: 0, exported: 0, coming: undefined }
    const tools = profile.tools.length === 0 ? [] : this.#options.toolsOf(profile)
    const session: Held = { id, tenantId, profile, tools, status: 'idle', ...used }
    this.touch(session)
    return session
  }
  /** Marks a session as used now. */
  touch(session: Held): void {
    const time = this.#now()
    this.#usedAt.set(session, time)
    session.lastUsedAt = new Date(time).toISOString()
    this.#sessions.delete(session.id)
    this.#sessions.set(session.id, session)
  }
  /** A run begins in it. */
  occupy(session: Held, runId: string): void {
    session.status = 'running'
    session.activeRunId = runId
    this.touch(session)
  }
  /** Its run is over. */
  free(session: Held, status: 'idle' | 'errored'): void {
    delete session.activeRunId
    if (session.status === 'shutdown') return
    session.status = status
    this.touch(session)
  }
  remove(session: Held): void {
    if (this.#sessions.get(session.id) === session) this.#sessions.delete(session.id)
    session.status = 'shutdown'
  }
  /** Lets go of sessions that were idle longer than their time. */
  sweep(): void {
    const oldest = this.#now() - this.#options.idleTtlMs
    for (const session of this.#sessions.values()) {
      if ((this.#usedAt.get(session) ?? 0) > oldest) break
      if (session.status !== 'running') this.#evict(session)
    }
  }
  #now(): number {
    return (this.#options.now ?? Date.now)()
  }
  #evict(session: Held): void {
    this.remove(session)
    this.#options.onEvict(session)
  }
  #makeRoom(): void {
    if (this.#sessions.size < this.#options.max) return
    for (const session of this.#sessions.values()) {
      if (session.status !== 'running') return this.#evict(session)
    }
    throw runnerFull({ retryable: true })
  }
}

export const keyOf = (tenantId: string, sessionId: string): string => `${tenantId}\n${sessionId}`
