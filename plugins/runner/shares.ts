import { defaultLimits } from '#contracts/limits'
import type { Profile } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'

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
  /** The state of it that is in the memory of this process: a bundle on its way, or the copy of what its sandbox has. */
  stateBytes: number
}

interface Snapshot {
  readonly profile: Profile
  readonly bytes: number
  users: number
}

interface Share {
  /** Least recently used first. */
  readonly sessions: Map<string, LiveSession>
  /** By what names one version of a profile. */
  readonly snapshots: Map<string, Snapshot>
  /** Of the profiles. */
  bytes: number
  /** Of the states of sessions. */
  stateBytes: number
}

/**
 * What each tenant has of the memory of one runner: its sessions, the profiles in them, and their states. Sessions of the same
 * version of a profile share one copy.
 */
export class TenantShares {
  readonly #shares = new Map<string, Share>()
  /** How many bytes a tenant may have, where that is not the default. */
  readonly #limits = new Map<string, number>()

  limitOf(tenantId: string): number {
    return this.#limits.get(tenantId) ?? defaultLimits.stateBytes
  }
  /** Undefined: a conductor of an earlier release has not said. */
  allow(tenantId: string, bytes: number | undefined): void {
    if (bytes === undefined || bytes === defaultLimits.stateBytes) this.#limits.delete(tenantId)
    else this.#limits.set(tenantId, bytes)
  }
  /** What a session with this profile would add: nothing when others have it. */
  bytesOf(tenantId: string, profile: Profile): number {
    return this.#shares.get(tenantId)?.snapshots.has(versionOf(profile)) ? 0 : JSON.stringify(profile).length
  }
  /** The session has so many bytes of state from now on. */
  hold(session: LiveSession, bytes: number): void {
    const share = this.#shares.get(session.tenantId)!
    share.stateBytes += bytes - session.stateBytes
    session.stateBytes = bytes
  }
  /** The sessions of a tenant that have a state, least recently used first. */
  *holders(tenantId: string): Generator<LiveSession> {
    for (const session of this.#shares.get(tenantId)?.sessions.values() ?? []) if (session.stateBytes > 0) yield session
  }

  /** Counts a session, and returns the profile for it. */
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
    const bytes = JSON.stringify(profile).length
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
  /** The session of the tenant that rests longest. */
  oldestAtRest(tenantId: string): LiveSession | undefined {
    for (const session of this.#shares.get(tenantId)?.sessions.values() ?? [])
      if (session.status !== 'running') return session
    return undefined
  }
}

/** A conductor of an earlier release names no version: then only the same text is the same profile. */
const versionOf = (profile: Profile): string => {
  const { name, version, updatedAt, placement, pinnedSkills } = profile
  return JSON.stringify(version === undefined ? profile : [name, version, updatedAt, placement, pinnedSkills])
}
