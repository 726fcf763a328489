import type { Profile } from '#contracts/profiles'
import type { UnsavedSession } from '#contracts/runner'
import { restoredFromLog, type StateBundle } from '#contracts/runtime'
import { runnerDraining, sessionBusy, unknownSession } from './errors.ts'
import type { Forgetting, SessionLinks } from './links.ts'
import { type Held, isUnsaved, type SessionTable } from './sessions.ts'

export interface ConversationDeps {
  readonly table: SessionTable
  readonly links: SessionLinks
  readonly forgetting: Forgetting
  create(tenantId: string, id: string, profile: Profile): Held
  isDraining(): boolean
}

/** Brings conversations to whoever executes their sessions, and fetches them from there. */
export class Conversations {
  readonly #deps: ConversationDeps
  readonly #coming = new Map<Held, Promise<void>>()

  constructor(deps: ConversationDeps) {
    this.#deps = deps
  }

  /** The conversation is on its way: no run may begin before it is there. */
  isComing(session: Held): boolean {
    return this.#coming.has(session)
  }
  async hydrate(
    tenantId: string,
    id: string,
    profile: Profile,
    bundle: StateBundle | undefined,
    replace: boolean,
  ): Promise<void> {
    const { table, forgetting, create, isDraining } = this.#deps
    const present = table.find(tenantId, id)
    // Whoever comes second must not be told "ready" while the first one is still bringing the conversation.
    if (present && !replace) return this.#coming.get(present)
    if (isDraining()) throw runnerDraining({ retryable: true })
    if (present) {
      if (present.status === 'running' || this.isComing(present)) throw sessionBusy()
      table.remove(present)
    }
    const session = create(tenantId, id, profile)
    const handle = handleOf(session, bundle)
    if (handle !== undefined) session.runtimeSessionId = handle
    const told = forgetting.finish(id)
    const coming = bundle || present ? this.#bring(session, bundle, told) : told
    if (!coming) return
    this.#coming.set(session, coming)
    await coming.finally(() => this.#coming.delete(session))
  }
  async exportState(tenantId: string, id: string): Promise<StateBundle | undefined> {
    const session = this.#deps.table.find(tenantId, id)
    if (!session) throw unknownSession()
    const { changes } = session
    const bundle = await this.#deps.links.of(session).exportState(session.profile.runtime, id)
    // A run that ended meanwhile is not in it, or not whole.
    session.exported = Math.max(session.exported, changes)
    session.exportedAt = Date.now()
    if (!bundle) return undefined
    const { bytes, contentType } = bundle
    const handle = handleOf(session, bundle) ?? session.runtimeSessionId
    return { bytes, contentType, ...(handle === undefined ? {} : { runtimeSessionId: handle }) }
  }
  unsaved(): UnsavedSession[] {
    const sessions = [...this.#deps.table.all()]
    return sessions.filter(isUnsaved).map(({ tenantId, id: sessionId }) => ({ tenantId, sessionId }))
  }

  /** Without a bundle an old conversation was here, and the newest one is empty. */
  async #bring(session: Held, bundle: StateBundle | undefined, told: Promise<void> | undefined): Promise<void> {
    const { runtime } = session.profile
    try {
      if (bundle) await told
      const link = this.#deps.links.of(session)
      if (!bundle) return await link.forget(runtime, session.id)
      await link.hydrate(runtime, session.id, bundle)
      session.conversation = true
    } catch (error) {
      // A session whose conversation could not be brought is not there.
      this.#deps.table.remove(session)
      throw error
    }
  }
}

/** The vendor's handle in a bundle. A runtime without a vendor has none (specification 2.5). */
const handleOf = ({ profile }: Held, bundle: StateBundle | undefined): string | undefined =>
  restoredFromLog(profile.runtime) ? undefined : bundle?.runtimeSessionId
