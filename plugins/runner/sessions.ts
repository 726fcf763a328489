import { isClientId } from '#contracts/ids'
import { defaultLimits, overLimit } from '#contracts/limits'
import { type Profile, restoredFromLog } from '#contracts/profiles'
import type { ExecuteRun, RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { SidecarLink, Sidecars } from '#contracts/sidecar'
import type { VfsManager } from '#contracts/vfs-manager'
import type { SandboxWorkers } from '#contracts/workers'
import { heldBytesOf } from '#kit'

/** True when only this process has the newest conversation, which would be lost with the process. */
export const isUnsaved = ({ profile, status, changes, exported }: LiveSession): boolean =>
  changes > exported && !restoredFromLog(profile.runtime) && status !== 'running' && status !== 'shutdown'

/** Milliseconds after which a conductor has stored an exported conversation. Until then the copy here counts as the only one. */
const storedMs = 1_000

/** True when another runner can take the session: its last export is whole, and stored by now. */
export const canMove = (session: LiveSession, now: number): boolean =>
  session.status !== 'running' && !isUnsaved(session) && now - session.exportedAt > storedMs

/** The executors of this runner's runs, and the holders of what its sessions leave behind. */
export interface Executors {
  readonly sidecars: Sidecars
  /** Undefined: this runner has no sandboxes. */
  readonly sandboxes: SandboxWorkers | undefined
  /** Undefined: this runner has no VirtualFS. */
  readonly vfs: VfsManager | undefined
}

export const isWorker = ({ workerMode }: Profile): boolean => workerMode === 'sandbox'
/** True for a profile whose worker, or only its tools, run in a sandbox. */
export const hasSandbox = (profile: Profile): boolean => isWorker(profile) || profile.sandbox !== undefined
/** The executor of a session's runs. Throws AppError 503 when this runner has none. */
export function linkOf({ sidecars, sandboxes }: Executors, session: RunnerSession): SidecarLink {
  if (!isWorker(session.profile)) return sidecars.forRuntime(session.profile.runtime)
  if (!sandboxes) throw runnerErrors.noSandboxSubstrate()
  return sandboxes.link(session)
}

interface TableOptions {
  readonly max: number
  /** The most bytes of memory that profiles in the sessions of one tenant take. Beyond it the longest-idle sessions are evicted. */
  readonly maxProfileBytes: number
  readonly idleTtlMs: number
  /** The tools that a session of this profile may use, given that the profile names some. */
  readonly toolsOf: (profile: Profile) => readonly string[]
  /** Called when a session left memory without being shut down. The conductor can hydrate it again. */
  readonly onEvict: (session: RunnerSession) => void
  /** Whether a session has files that would be lost with it. */
  readonly hasFiles: (session: RunnerSession) => boolean
}

/** The sessions of one runner, by id, least recently used first. */
export class SessionTable {
  readonly #options: TableOptions
  // A Map keeps insertion order, so deleting and setting again moves a session to the recently used end.
  readonly #sessions = new Map<string, LiveSession>()
  readonly #shares = new TenantShares()
  /** The runner is about to stop, so the table takes no new session. */
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
  /** Throws `unknown_session` when another tenant has the id, which is also the answer for a missing session. */
  create(tenantId: string, id: string, profile: Profile): LiveSession {
    if (this.draining) throw runnerErrors.runnerDraining()
    if (!isClientId(id)) throw runnerErrors.invalidSessionId()
    if (this.#sessions.has(id)) throw runnerErrors.unknownSession()
    this.#makeRoom(tenantId)
    this.#admit(tenantId, this.#shares.bytesOf(tenantId, profile))
    const tools = profile.tools.length === 0 && !profile.pinnedSkills ? [] : this.#options.toolsOf(profile)
    const session = new LiveSession(tenantId, id, profile, tools)
    this.#sessions.set(id, session)
    session.profile = this.#shares.add(session)
    return session
  }
  /** Sets the limits of a tenant on this runner, as a conductor states them. */
  allow(tenantId: string, { stateBytes }: NonNullable<ExecuteRun['limits']>): void {
    this.#shares.allow(tenantId, stateBytes)
  }
  /** See `SessionMemory`. */
  hold(tenantId: string, id: string, bytes: number): void {
    const session = this.find(tenantId, id)
    if (!session) throw runnerErrors.unknownSession()
    const more = bytes - session.stateBytes
    if (more > 0) this.#admit(tenantId, more, session)
    this.#shares.hold(session, bytes)
  }
  /** Bytes that the sessions of a tenant occupy in the memory of this process. */
  bytesOf(tenantId: string): number {
    const { bytes, stateBytes } = this.#shares.sizeOf(tenantId)
    return bytes + stateBytes
  }
  /** Throws 429 `limit_reached` when a tenant uses more than it may, or would with `more` bytes for `session`. */
  admit(session: LiveSession): void {
    this.#admit(session.tenantId, 0, session)
  }
  /** Marks a session as used now. */
  touch(session: LiveSession): void {
    session.usedAt = Date.now()
    this.#shares.touch(session)
    this.#sessions.delete(session.id)
    this.#sessions.set(session.id, session)
  }
  /** Marks the session as running this run. */
  occupy(session: LiveSession, runId: string): void {
    session.status = 'running'
    session.activeRunId = runId
    this.touch(session)
  }
  /** Marks the session as free, because its run is over. */
  free(session: LiveSession, status: 'idle' | 'errored'): void {
    session.activeRunId = undefined
    if (session.status === 'shutdown') return
    session.status = status
    this.touch(session)
  }
  remove(session: LiveSession): void {
    if (this.#sessions.get(session.id) === session) {
      this.#sessions.delete(session.id)
      this.#shares.remove(session)
    }
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
  /** Makes room for more bytes of a tenant. Sessions whose state is stored elsewhere leave first, the longest-idle ones before others. */
  #admit(tenantId: string, more: number, but?: LiveSession): void {
    const most = this.#shares.limitOf(tenantId)
    const exceeds = (): boolean => this.bytesOf(tenantId) + more > most
    if (!exceeds()) return
    const now = Date.now()
    for (const session of this.#shares.holders(tenantId)) {
      if (session === but || session.hydrating || !canMove(session, now) || this.#options.hasFiles(session)) continue
      this.#evict(session)
      if (!exceeds()) return
    }
    throw overLimit('stateBytes', most)
  }
  #evict(session: LiveSession): void {
    this.remove(session)
    this.#options.onEvict(session)
  }
  /** In a full table, a tenant with half of all sessions gives up one of its own; otherwise the longest-idle session leaves. */
  #makeRoom(tenantId: string): void {
    const { max, maxProfileBytes } = this.#options
    const mostProfiles = Math.min(maxProfileBytes, this.#shares.limitOf(tenantId))
    while (this.#shares.sizeOf(tenantId).bytes >= mostProfiles && this.#evictOldest(tenantId));
    if (this.#sessions.size < max) return
    if (this.#shares.sizeOf(tenantId).sessions >= Math.ceil(max / 2)) {
      if (this.#evictOldest(tenantId)) return
      throw runnerErrors.runnerFull()
    }
    for (const session of this.#sessions.values()) {
      if (session.status !== 'running') return this.#evict(session)
    }
    throw runnerErrors.runnerFull()
  }
  /** Evicts the longest-idle session of the tenant. False: none of its sessions is idle. */
  #evictOldest(tenantId: string): boolean {
    const oldest = this.#shares.oldestAtRest(tenantId)
    if (oldest) this.#evict(oldest)
    return oldest !== undefined
  }
}

/**
 * A session as this plugin changes it; other plugins see the read-only `RunnerSession`. All fields exist from the start, so that all sessions share
 * one hidden class: a runner has tens of thousands of sessions, and one whose fields come and go takes a kilobyte more.
 */
export class LiveSession implements RunnerSession {
  readonly tenantId: string
  readonly id: string
  profile: Profile
  readonly tools: readonly string[]
  status: RunnerSession['status'] = 'idle'
  readonly #createdAt = Date.now()
  usedAt = this.#createdAt
  activeRunId: string | undefined = undefined
  runtimeSessionId: string | undefined = undefined
  limits: ExecuteRun['limits'] = undefined
  /** The sidecar should hold a conversation, because a run ended there or a bundle was taken over. */
  conversation = false
  /** Pending while the conversation is on its way. No run may begin before it has arrived. */
  hydrating: Promise<void> | undefined = undefined
  /** Counts the runs that may have changed the conversation. The next field says how many of them the last export contained. */
  changes = 0
  exported = 0
  /** When the last export was handed out; 0: never. */
  exportedAt = 0
  /** Bytes of the session's state in the memory of this process: a bundle on its way, or the copy of what its sandbox has. */
  stateBytes = 0

  constructor(tenantId: string, id: string, profile: Profile, tools: readonly string[]) {
    this.tenantId = tenantId
    this.id = id
    this.profile = profile
    this.tools = tools
  }

  get createdAt(): string {
    return new Date(this.#createdAt).toISOString()
  }
  get lastUsedAt(): string {
    return new Date(this.usedAt).toISOString()
  }
}

interface Snapshot {
  readonly profile: Profile
  readonly bytes: number
  users: number
}

interface Share {
  /** The tenant's sessions, least recently used first. */
  readonly sessions: Map<string, LiveSession>
  /** By the key that names one version of a profile. */
  readonly snapshots: Map<string, Snapshot>
  /** Bytes of the profiles. */
  bytes: number
  /** Bytes of the sessions' states. */
  stateBytes: number
}

/**
 * What each tenant occupies in the memory of one runner: its sessions, their profiles, and their states. Sessions with the same version of a
 * profile share one copy.
 */
class TenantShares {
  readonly #shares = new Map<string, Share>()
  /** How many bytes each tenant may have. A tenant that is missing here has the default. */
  readonly #limits = new Map<string, number>()

  limitOf(tenantId: string): number {
    return this.#limits.get(tenantId) ?? defaultLimits.stateBytes
  }
  /** Undefined bytes: a conductor of an earlier release has not stated the limit. */
  allow(tenantId: string, bytes: number | undefined): void {
    if (bytes === undefined || bytes === defaultLimits.stateBytes) this.#limits.delete(tenantId)
    else this.#limits.set(tenantId, bytes)
  }
  /** Bytes that a session with this profile would add: none when other sessions have the profile. */
  bytesOf(tenantId: string, profile: Profile): number {
    return this.#shares.get(tenantId)?.snapshots.has(versionOf(profile)) ? 0 : heldBytesOf(profile)
  }
  /** Sets the bytes of the session's state. */
  hold(session: LiveSession, bytes: number): void {
    const share = this.#shares.get(session.tenantId)!
    share.stateBytes += bytes - session.stateBytes
    session.stateBytes = bytes
  }
  /** The sessions of a tenant that hold state, least recently used first. */
  *holders(tenantId: string): Generator<LiveSession> {
    for (const session of this.#shares.get(tenantId)?.sessions.values() ?? []) if (session.stateBytes > 0) yield session
  }

  /** Counts a session, and returns the shared copy of its profile. */
  add(session: LiveSession): Profile {
    const { tenantId, id, profile } = session
    const share = this.#shares.get(tenantId) ?? { sessions: new Map(), snapshots: new Map(), bytes: 0, stateBytes: 0 }
    this.#shares.set(tenantId, share)
    share.sessions.set(id, session)
    const key = versionOf(profile)
    const known = share.snapshots.get(key)
    if (known) {
      known.users++
      return known.profile
    }
    const bytes = heldBytesOf(profile)
    share.snapshots.set(key, { profile, bytes, users: 1 })
    share.bytes += bytes
    return profile
  }
  touch({ tenantId, id }: LiveSession): void {
    const sessions = this.#shares.get(tenantId)?.sessions
    const session = sessions?.get(id)
    if (!session) return
    sessions!.delete(id)
    sessions!.set(id, session)
  }
  remove(session: LiveSession): void {
    const { tenantId, id, profile } = session
    const share = this.#shares.get(tenantId)
    if (!share?.sessions.delete(id)) return
    share.stateBytes -= session.stateBytes
    session.stateBytes = 0
    const key = versionOf(profile)
    const snapshot = share.snapshots.get(key)!
    if (--snapshot.users === 0) {
      share.snapshots.delete(key)
      share.bytes -= snapshot.bytes
    }
    if (share.sessions.size === 0) this.#shares.delete(tenantId)
  }
  sizeOf(tenantId: string): { readonly sessions: number } & Pick<Share, 'bytes' | 'stateBytes'> {
    const { sessions, bytes = 0, stateBytes = 0 } = this.#shares.get(tenantId) ?? {}
    return { sessions: sessions?.size ?? 0, bytes, stateBytes }
  }
  /** The longest-idle session of the tenant. */
  oldestAtRest(tenantId: string): LiveSession | undefined {
    for (const session of this.#shares.get(tenantId)?.sessions.values() ?? [])
      if (session.status !== 'running') return session
    return undefined
  }
}

/** A conductor of an earlier release names no version. Profiles are then the same only if their texts are equal. */
const versionOf = (profile: Profile): string => {
  const { name, version, updatedAt, placement, pinnedSkills } = profile
  return JSON.stringify(version === undefined ? profile : [name, version, updatedAt, placement, pinnedSkills])
}
