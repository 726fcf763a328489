import { whenRead } from '#kernel'
import type { ExecuteRun, RunnerService, RunnerSession } from '#contracts/runner'
import { attemptSuperseded, runnerDraining, sessionBusy, unknownRun, unknownSession } from './errors.ts'
import type { RunOutput } from './output.ts'
import { type Held, isElsewhere, keyOf } from './sessions.ts'
import { Ledgers } from './tool-calls.ts'
import { Turn, type TurnHost } from './turn.ts'

/** What all runs together keep of what was read, how much of it one may have, and what each may have in any case. */
const keptInAll = 16 * 1024 * 1024
const mostKept = 256 * 1024
const leastKept = 16 * 1024
/** Runs that have ended and are kept for another reader; then the first of them goes. */
const maxEnded = 4_096
const maxEndedBytes = 32 * 1024 * 1024

interface TurnsOptions extends Pick<TurnHost, 'table' | 'conversations' | 'executors' | 'log'> {
  /** Under which sidecars reach the session MCP endpoint; known once the kernel listens. */
  mcpBaseUrl(): string
}

/** The runs of this runner: one under way in a session, and what has ended for as long as another reader may come for it. */
export class Turns {
  readonly ledgers = new Ledgers()
  readonly #host: TurnHost
  /** Those that are not over. */
  readonly #turns = new Set<Turn>()
  /** What the newest run of each session has written, by tenant and session. */
  readonly #outputs = new Map<string, RunOutput<Turn>>()
  /** Those of runs that are over, by the same key; the first to end first. */
  readonly #ended = new Map<string, { readonly bytes: number; readonly timer: NodeJS.Timeout }>()
  #endedBytes = 0

  constructor({ mcpBaseUrl, ...shared }: TurnsOptions) {
    let mcpBase: string | undefined
    this.#host = {
      ...shared,
      keepBytes: () => Math.max(leastKept, Math.min(mostKept, keptInAll / this.#turns.size)),
      mcpUrl: (sessionId) => `${(mcpBase ??= mcpBaseUrl().replace(/\/+$/, ''))}/runner/sessions/${sessionId}/mcp`,
      over: (turn) => this.#over(turn),
    }
  }

  /** Runs under way. */
  get size(): number {
    return this.#turns.size
  }
  /** A run is under way, or nobody has taken the end of one. */
  get busy(): boolean {
    return this.#turns.size > 0 || [...this.#ended.keys()].some((key) => !this.#outputs.get(key)!.isRead)
  }
  /** The run under way in a session. */
  of(session: RunnerSession): Turn | undefined {
    return this.#outputs.get(keyOf(session.tenantId, session.id))?.owner
  }
  readonly execute: RunnerService['execute'] = (tenantId, run, signal) =>
    whenRead(() => (signal.aborted ? undefined : this.#begin(tenantId, run).start(run, signal)))
  readonly attach: RunnerService['attach'] = (tenantId, from, signal) =>
    whenRead(() => {
      if (signal.aborted) return undefined
      const output = this.#outputs.get(keyOf(tenantId, from.sessionId))
      if (output?.runId !== from.runId) throw unknownRun()
      return output.attach(from, signal)
    })
  readonly cancel: RunnerService['cancelRun'] = (tenantId, runId, reason) => {
    for (const turn of this.#turns) {
      if (turn.session.tenantId === tenantId && turn.runId === runId) turn.stop(reason)
    }
  }
  /** The session is shut down: resolves when nothing is left of its run. */
  async shutdown(session: RunnerSession): Promise<void> {
    this.ledgers.drop(session)
    const turn = this.of(session)
    turn?.end('session_shutdown')
    await turn?.over
  }
  /** Ends every run with `runner_stopping`. */
  async stop(): Promise<void> {
    const ending = [...this.#turns]
    for (const turn of ending) turn.end('runner_stopping')
    await Promise.all(ending.map((turn) => turn.over))
    for (const key of this.#ended.keys()) this.#drop(key)
  }

  #begin(tenantId: string, run: ExecuteRun): Turn {
    const session = this.#claim(tenantId, run)
    const turn = new Turn(this.#host, session, run)
    this.#host.table.occupy(session, run.runId)
    this.#turns.add(turn)
    const key = keyOf(tenantId, session.id)
    // Another run of the session means that somebody has the end of the former one.
    this.#drop(key)
    this.#outputs.set(key, turn.output)
    return turn
  }
  /** The session, free for this run. */
  #claim(tenantId: string, run: ExecuteRun): Held {
    const { table } = this.#host
    let session = table.find(tenantId, run.sessionId)
    if (!session) {
      if (!run.create) throw unknownSession()
      session = table.create(tenantId, run.sessionId, run.create.profile)
    }
    const former = this.of(session)
    if (former && !former.ended) {
      const { epoch } = former.output
      if (run.epoch !== undefined && run.epoch < epoch) throw attemptSuperseded()
      // Whoever held that run was given up, or has lost its claim. It may be frozen, and then nobody reads its stream to the end.
      const isLater = former.runId === run.runId && (run.attempt ?? 1) > former.attempt
      if (isLater || (run.epoch ?? 0) > epoch) former.end('cancelled')
    }
    if (session.status === 'running' || session.coming) throw sessionBusy()
    // It goes on elsewhere from its saved state; one that is not saved yet goes on here, where its conversation is.
    if (table.draining && isElsewhere(session, Date.now())) throw runnerDraining({ retryable: true })
    if (session.profile.onCrash === 'retry' && !this.ledgers.open(session, run)) throw attemptSuperseded()
    return session
  }

  #over(turn: Turn): void {
    const { session, output } = turn
    this.#turns.delete(turn)
    const key = keyOf(session.tenantId, session.id)
    if (this.#outputs.get(key) !== output) return
    const { bytes, keepMs } = output
    this.#ended.set(key, { bytes, timer: setTimeout(() => this.#drop(key), keepMs).unref() })
    this.#endedBytes += bytes
    if (keepMs === 0 || output.failed) this.#drop(key)
    for (const oldest of this.#ended.keys()) {
      if (this.#ended.size <= maxEnded && this.#endedBytes <= maxEndedBytes) return
      this.#drop(oldest)
    }
  }
  /** Unless that run is under way. */
  #drop(key: string): void {
    const ended = this.#ended.get(key)
    if (!ended) return
    clearTimeout(ended.timer)
    this.#ended.delete(key)
    this.#endedBytes -= ended.bytes
    this.#outputs.delete(key)
  }
}
