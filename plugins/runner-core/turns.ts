import type { Profile } from '#contracts/profiles'
import type { ExecuteRun } from '#contracts/runner'
import { attemptSuperseded, runnerDraining, sessionBusy, unknownSession } from './errors.ts'
import { type StartedTurn, startTurn, type Turn } from './execute.ts'
import type { Ledgers } from './ledger.ts'
import type { SessionLinks } from './links.ts'
import { type Held, isElsewhere, type SessionTable } from './sessions.ts'

/** The runs under way on this runner, one a session. */
export interface Turns {
  readonly size: number
  of(session: Held): Turn | undefined
  execute(tenantId: string, run: ExecuteRun, signal: AbortSignal): AsyncGenerator<Buffer>
  cancel(tenantId: string, runId: string): void
  /** Ends every run with `runner_stopping`. */
  stop(): Promise<void>
}

export interface TurnDeps {
  readonly table: SessionTable
  readonly links: SessionLinks
  readonly ledgers: Ledgers
  readonly create: (tenantId: string, id: string, profile: Profile) => Held
  readonly isComing: (session: Held) => boolean
  /** Tells whoever executed its runs that it left. */
  readonly forget: (session: Held) => void
  readonly isDraining: () => boolean
  readonly mcpBaseUrl: () => string
  readonly log: { warn(fields: object, message: string): void }
}

export function createTurns(deps: TurnDeps): Turns {
  const { table, links, ledgers } = deps
  const turns = new Map<Held, Turn>()

  const claim = (tenantId: string, run: ExecuteRun): Held => {
    let session = table.find(tenantId, run.sessionId)
    if (!session) {
      if (!run.create) throw unknownSession()
      if (deps.isDraining()) throw runnerDraining({ retryable: true })
      session = deps.create(tenantId, run.sessionId, run.create.profile)
    }
    const former = turns.get(session)
    // Whoever held this run before was given up; it may be frozen, and then nobody reads its stream to the end.
    if (former && session.activeRunId === run.runId && (run.attempt ?? 1) > former.attempt) former.supersede()
    if (session.status === 'running' || deps.isComing(session)) throw sessionBusy()
    // It goes on elsewhere from its saved state; one that is not saved yet goes on here, where its conversation is.
    if (deps.isDraining() && isElsewhere(session, Date.now())) throw runnerDraining({ retryable: true })
    if (session.profile.onCrash === 'retry' && !ledgers.open(session, run)) throw attemptSuperseded()
    return session
  }
  const begin = (tenantId: string, run: ExecuteRun): StartedTurn => {
    const held = claim(tenantId, run)
    const prepare = links.preparing(held)
    const turn = startTurn({
      session: held,
      run,
      ...(prepare ? { prepare } : {}),
      sidecar: () => links.of(held),
      sessionMcpUrl: held.tools.length === 0 ? undefined : `${deps.mcpBaseUrl()}/runner/sessions/${held.id}/mcp`,
      onFree(status) {
        if (held.status !== 'shutdown') {
          held.status = status
          table.touch(held)
        }
        delete held.activeRunId
      },
      onStateMissing() {
        // As if this runner had never had the session: the conductor hydrates it and asks again, perhaps elsewhere.
        table.remove(held)
        if (prepare) deps.forget(held)
        return unknownSession()
      },
      log: deps.log,
    })
    held.status = 'running'
    held.activeRunId = run.runId
    table.touch(held)
    turns.set(held, turn)
    return turn
  }
  return {
    get size() {
      return turns.size
    },
    of: (session) => turns.get(session),
    cancel(tenantId, runId) {
      for (const [session, turn] of turns) {
        if (session.tenantId === tenantId && session.activeRunId === runId) turn.end('cancelled')
      }
    },
    async *execute(tenantId, run, signal) {
      if (signal.aborted) return
      const turn = begin(tenantId, run)
      const onAbort = (): void => turn.end(signal.reason === 'shutdown' ? 'runner_stopping' : 'cancelled')
      signal.addEventListener('abort', onAbort, { once: true })
      try {
        yield* turn.chunks
      } finally {
        signal.removeEventListener('abort', onAbort)
        if (turns.get(turn.session) === turn) turns.delete(turn.session)
      }
    },
    async stop() {
      const ending = [...turns.values()]
      for (const turn of ending) turn.end('runner_stopping')
      await Promise.all(ending.map((turn) => turn.over))
    },
  }
}
