import type { Profile } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'
import type { SidecarLink, Sidecars } from '#contracts/sidecar'
import type { PreparedRun, SandboxWorkers } from '#contracts/workers'
import { noSandboxSubstrate } from './errors.ts'

export type Prepare = (resume: boolean, signal: AbortSignal) => Promise<PreparedRun | undefined>

/** Who executes the runs of a session: a sidecar of this runner, or the worker in the session's own sandbox. */
export interface SessionLinks {
  /** Throws AppError 503 when this runner has neither. */
  of(session: RunnerSession): SidecarLink
  /** What must be ready before a run of the session. Undefined: it has no sandbox. */
  preparing(session: RunnerSession): Prepare | undefined
  /** The session left this runner. */
  forget(session: RunnerSession): Promise<void>
}

/** For its worker, or for its tools alone. */
export const hasSandbox = ({ workerMode, sandbox }: Profile): boolean =>
  workerMode === 'sandbox' || sandbox !== undefined

export function createSessionLinks(sidecars: Sidecars, sandboxes: SandboxWorkers | undefined): SessionLinks {
  const isSandboxed = ({ profile }: RunnerSession): boolean => profile.workerMode === 'sandbox'
  const forRuntime = ({ profile }: RunnerSession): SidecarLink => sidecars.forRuntime(profile.runtime)
  const tellSidecar = async (session: RunnerSession): Promise<void> =>
    forRuntime(session).forget(session.profile.runtime, session.id)
  return {
    of(session) {
      if (!isSandboxed(session)) return forRuntime(session)
      if (!sandboxes) throw noSandboxSubstrate()
      return sandboxes.link(session)
    },
    preparing(session) {
      if (!sandboxes || !hasSandbox(session.profile)) return undefined
      return (resume, signal) => sandboxes.prepare(session, resume, signal)
    },
    async forget(session) {
      await Promise.all([isSandboxed(session) ? undefined : tellSidecar(session), sandboxes?.release(session)])
    },
  }
}

/** A sweep lets go of all the sessions of a minute: told all at once, each would be a connection of its own. */
const atOnce = 16

/** Whoever executed the runs of sessions that left memory here is told to forget them. */
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
  /** Before a session comes back: resolves once its sidecar has been told, or it would forget the conversation that is brought now. */
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
