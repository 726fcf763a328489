import { timingSafeEqual } from 'node:crypto'
import { startOnRead } from '#kernel'
import { bearerForm } from '#contracts/auth'
import { tenantKey } from '#contracts/ids'
import { defaultLimits, overLimit } from '#contracts/limits'
import { attachmentBytesOf } from '#contracts/prompt'
import type { ExecuteRun, RunnerLink, RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { Ahead } from '#kit'
import type { RunOutput } from './output.ts'
import { Run, type RunContext } from './run.ts'
import { canMove, type LiveSession } from './sessions.ts'
import { skillsOf } from './skills.ts'
import { Ledgers } from './tool-calls.ts'

/** Read bytes that are kept for another reader: of all runs together, of one run at most, and of one run in any case. */
const keptInAll = 16 * 1024 * 1024
const mostKept = 256 * 1024
const leastKept = 16 * 1024
/** The most ended runs that are kept for another reader. Beyond it the run that ended first is dropped. */
const maxEnded = 4_096
const maxEndedBytes = 32 * 1024 * 1024

export interface RunsOptions extends Omit<RunContext, 'keepBytes' | 'over' | 'mcpUrl'> {
  /** The base URL at which sidecars reach the MCP endpoints of this runner. Known once the kernel listens. */
  mcpBase(): string
  /** Hears for which tenants this runner works. */
  readonly ahead: Pick<Ahead, 'works'>
}

/** The runs of this runner: at most one under way in a session, and the output of ended ones for as long as another reader may come. */
export class Runs {
  readonly ledgers = new Ledgers()
  readonly #host: RunContext
  readonly #ahead: Pick<Ahead, 'works'>
  /** The runs that are not over, each with the bytes of its attachments. */
  readonly #runs = new Map<Run, number>()
  /** The output of the newest run of each session, by tenant and session. */
  readonly #outputs = new Map<string, RunOutput<Run>>()
  /** The outputs of ended runs, by the same key, in the order in which the runs ended. */
  readonly #ended = new Map<string, { readonly bytes: number; readonly timer: NodeJS.Timeout }>()
  #endedBytes = 0

  constructor({ mcpBase, ahead, ...shared }: RunsOptions) {
    this.#ahead = ahead
    let base: string | undefined
    this.#host = {
      ...shared,
      mcpUrl: (sessionId) => `${(base ??= mcpBase().replace(/\/+$/, ''))}/runner/sessions/${sessionId}/mcp`,
      keepBytes: () => Math.max(leastKept, Math.min(mostKept, keptInAll / this.#runs.size)),
      over: (run) => this.#over(run),
    }
  }

  /** Runs under way. */
  get size(): number {
    return this.#runs.size
  }
  /** True while a run is under way, or while the end of a run was not read yet. */
  get busy(): boolean {
    return this.#runs.size > 0 || [...this.#ended.keys()].some((key) => !this.#outputs.get(key)!.isRead)
  }
  /** The run under way in a session. */
  of(session: RunnerSession): Run | undefined {
    return this.#outputs.get(tenantKey(session.tenantId, session.id))?.owner
  }
  /** Whether an Authorization header has the token of the run that is under way in the session. */
  admits(session: RunnerSession, authorization = ''): boolean {
    const run = this.of(session)
    const shown = Buffer.from(bearerForm.exec(authorization)?.[1] ?? '')
    const token = Buffer.from(run?.toolsToken ?? '')
    return run?.ended === false && shown.length === token.length && timingSafeEqual(shown, token)
  }
  readonly execute: RunnerLink['execute'] = (tenantId, order, signal) =>
    startOnRead(() => (signal.aborted ? undefined : this.#begin(tenantId, order).start(order, signal)))
  readonly attach: RunnerLink['attach'] = (tenantId, from, signal) =>
    startOnRead(() => {
      if (signal.aborted) return undefined
      const output = this.#outputs.get(tenantKey(tenantId, from.sessionId))
      if (output?.runId !== from.runId) throw runnerErrors.unknownRun()
      return output.attach(from, signal)
    })
  /** Ends a run under way with an `error` event. Its code is the reason if runs fail by that reason, otherwise `cancelled`. Idempotent. */
  cancel(tenantId: string, runId: string, reason?: string): void {
    for (const run of this.#runs.keys()) {
      if (run.session.tenantId === tenantId && run.runId === runId) run.stop(reason)
    }
  }
  /** Ends the session's run for a shutdown. Resolves when nothing of the run remains. */
  async shutdown(session: RunnerSession): Promise<void> {
    this.ledgers.drop(session)
    const run = this.of(session)
    run?.end('session_shutdown')
    await run?.over
  }
  /** Ends every run with `runner_stopping`. */
  async stop(): Promise<void> {
    const ending = [...this.#runs.keys()]
    for (const run of ending) run.end('runner_stopping')
    await Promise.all(ending.map((run) => run.over))
    for (const key of this.#ended.keys()) this.#drop(key)
  }

  #begin(tenantId: string, order: ExecuteRun): Run {
    this.#ahead.works(tenantId)
    const bytes = this.#admit(tenantId, order)
    const session = this.#claim(tenantId, order)
    const skills = session.profile.pinnedSkills && skillsOf(this.#host.skills, session)
    const run = new Run(this.#host, session, order, skills)
    if (order.limits) session.limits = order.limits
    this.#host.table.occupy(session, order.runId)
    this.#runs.set(run, bytes)
    const key = tenantKey(tenantId, session.id)
    // A conductor that starts another run of the session has read the end of the former one.
    this.#drop(key)
    this.#outputs.set(key, run.output)
    return run
  }
  /**
   * The bytes of a run's attachments. Throws 429 `limit_reached` when the tenant's other runs hold as many as they may; if they hold none, one run
   * always may bring its own.
   */
  #admit(tenantId: string, order: ExecuteRun): number {
    const bytes = attachmentBytesOf(order)
    if (bytes === 0) return 0
    const most = order.limits?.attachmentBytes ?? defaultLimits.attachmentBytes
    let held = 0
    for (const [{ session }, attached] of this.#runs)
      if (session.tenantId === tenantId && session.id !== order.sessionId) held += attached
    if (held > 0 && held + bytes > most) throw overLimit('attachmentBytes', most)
    return bytes
  }
  /** Returns the session when it is free for this run. Throws otherwise. */
  #claim(tenantId: string, order: ExecuteRun): LiveSession {
    const { table } = this.#host
    if (order.limits) table.allow(tenantId, order.limits)
    let session = table.find(tenantId, order.sessionId)
    if (!session) {
      if (!order.create) throw runnerErrors.unknownSession()
      session = table.create(tenantId, order.sessionId, order.create.profile)
    }
    const former = this.of(session)
    if (former && !former.ended) {
      const { epoch } = former.output
      if (order.epoch !== undefined && order.epoch < epoch) throw runnerErrors.attemptSuperseded()
      // A later attempt means that the previous reader lost its claim. That reader may be frozen and never read the previous run to its end.
      const isLater = former.runId === order.runId && (order.attempt ?? 1) > former.attempt
      if (isLater || (order.epoch ?? 0) > epoch) former.end('cancelled')
    }
    if (session.status === 'running' || session.hydrating) throw runnerErrors.sessionBusy()
    // While draining, a session whose state is saved moves elsewhere. An unsaved session continues here, where its conversation is.
    if (table.draining && canMove(session, Date.now())) throw runnerErrors.runnerDraining()
    table.admit(session)
    // When a run resumes after waiting for people, its finished calls must not be repeated, so it needs a ledger.
    const keeps = session.profile.onCrash === 'retry' || session.profile.requireApproval
    if (keeps && !this.ledgers.open(session, order)) throw runnerErrors.attemptSuperseded()
    return session
  }

  #over(run: Run): void {
    const { session, output } = run
    this.#runs.delete(run)
    const key = tenantKey(session.tenantId, session.id)
    if (this.#outputs.get(key) !== output) return
    const { bytes, keepMs } = output
    if (keepMs === 0 || output.failed) return void this.#outputs.delete(key)
    this.#ended.set(key, { bytes, timer: setTimeout(() => this.#drop(key), keepMs).unref() })
    this.#endedBytes += bytes
    for (const oldest of this.#ended.keys()) {
      if (this.#ended.size <= maxEnded && this.#endedBytes <= maxEndedBytes) return
      this.#drop(oldest)
    }
  }
  /** Forgets the output of an ended run. Does nothing while the session's newest run is under way. */
  #drop(key: string): void {
    const ended = this.#ended.get(key)
    if (!ended) return
    clearTimeout(ended.timer)
    this.#ended.delete(key)
    this.#endedBytes -= ended.bytes
    this.#outputs.delete(key)
  }
}
