import type { AppError } from '#kernel'
import { restoredFromLog } from '#contracts/profiles'
import type { RunnerLink, RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { StateBundle } from '#contracts/runtime'
import {
  type Executors,
  hasSandbox,
  type LiveSession,
  isUnsaved,
  isWorker,
  linkOf,
  type SessionTable,
} from './sessions.ts'

/**
 * The conversations of this runner's sessions. Each one is held by the executor of the session's runs: a sidecar of this runner, or the worker in
 * the session's sandbox. The runner brings it there, fetches it from there and has it forgotten there.
 */
export class Conversations {
  readonly #table: SessionTable
  readonly #executors: Executors
  readonly #log: { warn(fields: object, message: string): void }
  readonly #forgetting = new Forgetting((session) => this.#tellForgotten(session))

  constructor(table: SessionTable, executors: Executors, log: { warn(fields: object, message: string): void }) {
    this.#table = table
    this.#executors = executors
    this.#log = log
  }

  /** Called when the session left this runner. */
  forget(session: RunnerSession): void {
    this.#executors.vfs?.forget(session.tenantId, session.id)
    this.#forgetting.begin(session)
  }
  /** Called when the executor lacks the conversation. The returned error makes the conductor hydrate the session and retry, perhaps elsewhere. */
  lost(session: LiveSession): AppError {
    // Behave as if this runner had never had the session.
    this.#table.remove(session)
    session.activeRunId = undefined
    this.#executors.vfs?.forget(session.tenantId, session.id)
    if (this.#executors.sandboxes && hasSandbox(session.profile)) this.forget(session)
    return runnerErrors.unknownSession()
  }
  readonly hydrate: RunnerLink['hydrate'] = async (tenantId, id, profile, bundle, replace = false) => {
    const table = this.#table
    const present = table.find(tenantId, id)
    // A second caller must not be told "ready" while the first one is still bringing the conversation.
    if (present && !replace) return present.hydrating
    if (table.draining) throw runnerErrors.runnerDraining()
    if (present) {
      if (present.status === 'running' || present.hydrating) throw runnerErrors.sessionBusy()
      table.remove(present)
    }
    const session = table.create(tenantId, id, profile)
    this.#hold(session, bundle)
    const handle = handleOf(session, bundle)
    if (handle !== undefined) session.runtimeSessionId = handle
    const told = this.#forgetting.finish(id)
    session.hydrating = bundle || present ? this.#bring(session, bundle, told) : told
    await session.hydrating?.finally(() => (session.hydrating = undefined))
  }
  readonly exportState: RunnerLink['exportState'] = async (tenantId, id) => {
    const session = this.#table.find(tenantId, id)
    if (!session) throw runnerErrors.unknownSession()
    const { changes } = session
    const bundle = await linkOf(this.#executors, session).exportState(session.profile.runtime, id)
    // The bundle may lack a run that ended meanwhile.
    session.exported = Math.max(session.exported, changes)
    session.exportedAt = Date.now()
    if (!bundle) return undefined
    const { bytes, contentType } = bundle
    const handle = handleOf(session, bundle) ?? session.runtimeSessionId
    return { bytes, contentType, ...(handle === undefined ? {} : { runtimeSessionId: handle }) }
  }
  readonly unsaved: RunnerLink['unsaved'] = async () => {
    const sessions = [...this.#table.all()]
    return sessions.filter(isUnsaved).map(({ tenantId, id: sessionId }) => ({ tenantId, sessionId }))
  }

  /** Counts the bytes of the bundle that is on its way, or refuses the bundle. */
  #hold(session: LiveSession, bundle: StateBundle | undefined): void {
    try {
      this.#table.hold(session.tenantId, session.id, bundle?.bytes.byteLength ?? 0)
    } catch (error) {
      this.#table.remove(session)
      throw error
    }
  }
  /** Gives the conversation to its executor. Without a bundle the newest conversation is empty, and an old one here is forgotten. */
  async #bring(session: LiveSession, bundle: StateBundle | undefined, told: Promise<void> | undefined): Promise<void> {
    const { runtime } = session.profile
    try {
      if (bundle) await told
      const link = linkOf(this.#executors, session)
      if (!bundle) return await link.forget(runtime, session.id)
      await link.hydrate(runtime, session.id, bundle)
      session.conversation = true
      // A sidecar has the conversation now. The state of a sandbox is kept here as well.
      if (!isWorker(session.profile)) this.#hold(session, undefined)
    } catch (error) {
      // Without its conversation the session must not be used.
      this.#table.remove(session)
      throw error
    }
  }
  /** Best effort: a sidecar also forgets idle sessions by itself. */
  async #tellForgotten(session: RunnerSession): Promise<void> {
    const { sidecars, sandboxes } = this.#executors
    const { runtime } = session.profile
    const tellSidecar = async () => sidecars.forRuntime(runtime).forget(runtime, session.id)
    try {
      await Promise.all([isWorker(session.profile) ? undefined : tellSidecar(), sandboxes?.release(session)])
    } catch (err) {
      this.#log.warn({ err, sessionId: session.id }, 'a sidecar was not told to forget a session')
    }
  }
}

/** The vendor's handle in a bundle. A runtime without a vendor has none (specification 2.5). */
const handleOf = ({ profile }: LiveSession, bundle: StateBundle | undefined): string | undefined =>
  restoredFromLog(profile.runtime) ? undefined : bundle?.runtimeSessionId

/** A sweep drops all sessions that became idle within a minute. Telling all executors at once would open a connection for each. */
const atOnce = 16

/** Tells executors to forget the sessions that left this runner's memory. */
export class Forgetting {
  readonly #tell: (session: RunnerSession) => Promise<void>
  readonly #waiting = new Map<string, RunnerSession>()
  readonly #underWay = new Map<string, Promise<void>>()

  /** `tell` never rejects. */
  constructor(tell: (session: RunnerSession) => Promise<void>) {
    this.#tell = tell
  }

  begin(session: RunnerSession): void {
    this.#waiting.set(session.id, session)
    this.#next()
  }
  /**
   * Call it before a session returns. Resolves once its sidecar was told, because the sidecar would otherwise forget the conversation that is
   * brought now.
   */
  finish(sessionId: string): Promise<void> | undefined {
    const session = this.#waiting.get(sessionId)
    return session ? this.#start(session) : this.#underWay.get(sessionId)
  }
  #start(session: RunnerSession): Promise<void> {
    this.#waiting.delete(session.id)
    const told = this.#tell(session).finally(() => {
      this.#underWay.delete(session.id)
      this.#next()
    })
    this.#underWay.set(session.id, told)
    return told
  }
  #next(): void {
    for (const session of this.#waiting.values()) {
      if (this.#underWay.size >= atOnce) return
      void this.#start(session)
    }
  }
}
