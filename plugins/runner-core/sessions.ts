import { isClientId } from '#contracts/ids'
import type { Profile } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'
import { restoredFromLog } from '#contracts/runtime'
import { invalidSessionId, runnerFull, unknownSession } from './errors.ts'

/** The one mutable view of a session; everybody else holds it as `RunnerSession`. */
export type Held = { -readonly [K in keyof RunnerSession]: RunnerSession[K] } & {
  /** The sidecar should hold a conversation: a run ended there, or a bundle was taken over. */
  conversation?: boolean
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

export interface SessionLimits {
  readonly max: number
  readonly idleTtlMs: number
  readonly now?: () => number
  /** A session left memory without being shut down: the conductor can hydrate it again. */
  readonly onEvict: (session: RunnerSession) => void
}

/** The sessions of one runner, by id, least recently used first. */
export interface SessionTable {
  readonly size: number
  /** Undefined for an unknown session and for another tenant's. */
  find(tenantId: string, id: string): Held | undefined
  any(id: string): Held | undefined
  all(): IterableIterator<Held>
  /** Throws `unknown_session` when another tenant has the id: the same answer as for no session. */
  create(tenantId: string, id: string, profile: Profile, tools: readonly string[]): Held
  /** Marks a session as used now. */
  touch(session: Held): void
  remove(session: Held): void
  /** Lets go of sessions that were idle longer than their time. */
  sweep(): void
}

export function createSessionTable(limits: SessionLimits): SessionTable {
  const now = limits.now ?? Date.now
  // A Map keeps insertion order, so deleting and setting again moves a session to the recently used end.
  const sessions = new Map<string, Held>()
  const usedAt = new WeakMap<Held, number>()
  const evict = (session: Held): void => {
    sessions.delete(session.id)
    session.status = 'shutdown'
    limits.onEvict(session)
  }
  const makeRoom = (): void => {
    if (sessions.size < limits.max) return
    for (const session of sessions.values()) {
      if (session.status !== 'running') return evict(session)
    }
    throw runnerFull({ retryable: true })
  }
  const touch = (session: Held): void => {
    const time = now()
    usedAt.set(session, time)
    session.lastUsedAt = new Date(time).toISOString()
    sessions.delete(session.id)
    sessions.set(session.id, session)
  }
  return {
    get size() {
      return sessions.size
    },
    find(tenantId, id) {
      const session = sessions.get(id)
      return session?.tenantId === tenantId ? session : undefined
    },
    any: (id) => sessions.get(id),
    all: () => sessions.values(),
    create(tenantId, id, profile, tools) {
      if (!isClientId(id)) throw invalidSessionId()
      if (sessions.has(id)) throw unknownSession()
      makeRoom()
      const at = new Date(now()).toISOString()
      const session: Held = {
        id,
        tenantId,
        profile,
        tools,
        status: 'idle',
        createdAt: at,
        lastUsedAt: at,
        changes: 0,
        exported: 0,
      }
      touch(session)
      return session
    },
    touch,
    remove(session) {
      if (sessions.get(session.id) === session) sessions.delete(session.id)
      session.status = 'shutdown'
    },
    sweep() {
      const oldest = now() - limits.idleTtlMs
      for (const session of sessions.values()) {
        if ((usedAt.get(session) ?? 0) > oldest) break
        if (session.status !== 'running') evict(session)
      }
    },
  }
}
