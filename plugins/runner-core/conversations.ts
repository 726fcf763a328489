import type { Profile } from '#contracts/profiles'
import type { UnsavedSession } from '#contracts/runner'
import { restoredFromLog, type StateBundle } from '#contracts/runtime'
import { runnerDraining, sessionBusy, unknownSession } from './errors.ts'
import type { Forgetting, SessionLinks } from './links.ts'
import { type Held, isUnsaved, type SessionTable } from './sessions.ts'

/** Brings conversations to whoever executes their sessions, and fetches them from there. */
export interface Conversations {
  /** The conversation is on its way: no run may begin before it is there. */
  isComing(session: Held): boolean
  hydrate(
    tenantId: string,
    id: string,
    profile: Profile,
    bundle: StateBundle | undefined,
    replace: boolean,
  ): Promise<void>
  exportState(tenantId: string, id: string): Promise<StateBundle | undefined>
  unsaved(): UnsavedSession[]
}

export interface ConversationDeps {
  readonly table: SessionTable
  readonly links: SessionLinks
  readonly forgetting: Forgetting
  readonly create: (tenantId: string, id: string, profile: Profile) => Held
  readonly isDraining: () => boolean
}

export function createConversations(deps: ConversationDeps): Conversations {
  const { table, links, forgetting } = deps
  const hydrating = new Map<Held, Promise<void>>()
  /** A session whose conversation could not be brought is not there. */
  const orRemove = async (session: Held, bringing: () => Promise<void>): Promise<void> => {
    try {
      await bringing()
    } catch (error) {
      table.remove(session)
      throw error
    }
  }
  const bring = async (session: Held, bundle: StateBundle, told: Promise<void> | undefined): Promise<void> => {
    await told
    await links.of(session).hydrate(session.profile.runtime, session.id, bundle)
    session.conversation = true
  }
  /** An old conversation was here, and the newest one is empty. */
  const empty = (session: Held): Promise<void> => links.of(session).forget(session.profile.runtime, session.id)
  return {
    isComing: (session) => hydrating.has(session),
    async hydrate(tenantId, id, profile, bundle, replace) {
      const present = table.find(tenantId, id)
      // Whoever comes second must not be told "ready" while the first one is still bringing the conversation.
      if (present && !replace) return hydrating.get(present)
      if (deps.isDraining()) throw runnerDraining({ retryable: true })
      if (present) {
        if (present.status === 'running' || hydrating.has(present)) throw sessionBusy()
        table.remove(present)
      }
      const session = deps.create(tenantId, id, profile)
      const handle = handleOf(session, bundle)
      if (handle !== undefined) session.runtimeSessionId = handle
      const told = forgetting.finish(id)
      const bringing = bundle
        ? orRemove(session, () => bring(session, bundle, told))
        : present
          ? orRemove(session, () => empty(session))
          : told
      if (!bringing) return
      hydrating.set(session, bringing)
      await bringing.finally(() => hydrating.delete(session))
    },
    async exportState(tenantId, id) {
      const session = table.find(tenantId, id)
      if (!session) throw unknownSession()
      const { changes } = session
      const bundle = await links.of(session).exportState(session.profile.runtime, id)
      // A run that ended meanwhile is not in it, or not whole.
      session.exported = Math.max(session.exported, changes)
      session.exportedAt = Date.now()
      if (!bundle) return undefined
      const { bytes, contentType } = bundle
      const handle = handleOf(session, bundle) ?? session.runtimeSessionId
      return { bytes, contentType, ...(handle === undefined ? {} : { runtimeSessionId: handle }) }
    },
    unsaved: () => [...table.all()].filter(isUnsaved).map(({ tenantId, id: sessionId }) => ({ tenantId, sessionId })),
  }
}

/** The vendor's handle in a bundle. A runtime without a vendor has none (specification 2.5). */
const handleOf = ({ profile }: Held, bundle: StateBundle | undefined): string | undefined =>
  restoredFromLog(profile.runtime) ? undefined : bundle?.runtimeSessionId
