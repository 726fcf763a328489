import { randomBytes } from 'node:crypto'
import { type AppError, isAppError, type StreamEnd } from '#kernel'
import { endings } from '#contracts/endings'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent, UsageEvent } from '#contracts/run-event'
import { type ExecuteRun, isFailingStop, leaving } from '#contracts/runner'
import type { ObjectStore } from '#contracts/object-store'
import { restoredFromLog } from '#contracts/profiles'
import type { SkillCache, SkillContent } from '#contracts/skills'
import type { PreparedRun } from '#contracts/workers'
import { retry } from '#kit'
import { appsOf, type RunApps, withApps } from './apps.ts'
import type { Conversations } from './conversations.ts'
import { type OutputOwner, RunOutput } from './output.ts'
import { type EndCode, Relay, statusAfter, type Terminal } from './relay.ts'
import { type Executors, hasSandbox, linkOf, type LiveSession, type SessionTable } from './sessions.ts'
import { readableBy, readsNoLinks, requireLinks } from './links.ts'
import { Permissions } from './permissions.ts'
import { skillsAbsent, withSkills } from './skills.ts'

/** Milliseconds after the deadline during which a sidecar may still end the run itself, with the answer so far. */
const graceMs = 3_000
/** Milliseconds for which a sidecar's stream is read after the run has ended, before its connection is closed. */
const unwindMs = 1_000
/** Milliseconds that a sidecar may take to say that it lacks the conversation. It answers before it calls a model. */
const stateMissingMs = 2_000
/** Milliseconds for which the runner retries while a sidecar is busy with the session's previous run, or is restarting and cannot be reached. */
const busyMs = 3_000
const busyRetryMs = 25
/** Milliseconds for the same retries at an unreachable sidecar when another runner can take the run. */
const awayMs = 250
/** Larger delays overflow the timer. */
const maxTimerMs = 2 ** 31 - 1
/** Nothing of the run reached the sidecar, or the sidecar has just started and does not know older signatures; it will accept the next one. */
const isAway = ({ code, retryable }: AppError): boolean => retryable && /^(sidecar_unreachable|unavailable)$/.test(code)
/** The sidecar lacks the conversation, or drains while the conversation is stored elsewhere; or this runner cannot read the linked attachments. */
const lacksState = (error: AppError): boolean =>
  ['session_state_missing', 'sidecar_draining'].includes(error.code) || readsNoLinks(error)

/** What one run sees of its runner. */
export interface RunContext {
  readonly table: SessionTable
  readonly conversations: Conversations
  readonly executors: Executors
  /** Undefined: this runner keeps no skills, or has no object store for linked attachments. */
  readonly skills: SkillCache | undefined
  readonly objects: ObjectStore | undefined
  readonly log: { warn(fields: object, message: string): void }
  /** How many read bytes a run may keep. */
  readonly keepBytes: () => number
  /** The URL at which sidecars reach the MCP endpoint of a session. Known once the kernel listens. */
  mcpUrl(sessionId: string): string
  /** Called when the run is over and only its output remains. */
  over(run: Run): void
}

/**
 * One run. Whatever the sidecar does, the first line is the runner's, stamps are consecutive, the stream ends with exactly one `result` or `error`,
 * and it ends soon after the deadline or an abort. The first reason to end counts. The states are `preparing` (its sandbox is made ready), `asking`
 * (the sidecar has the envelope and may refuse it), `streaming`, `ended` (the terminal line is written and the session is free; the sidecar stream
 * is being closed) and `over`. The sidecar drives the run, not the reader, who may hand it to another reader.
 */
export class Run implements OutputOwner {
  readonly session: LiveSession
  readonly attempt: number
  readonly depth: number
  readonly skills: readonly SkillContent[] | undefined
  readonly apps: RunApps | undefined
  /** People's decisions on the run's calls. Undefined when no call of the run needs an approval. */
  readonly permissions: Permissions | undefined
  readonly output: RunOutput<Run>
  readonly #host: RunContext
  readonly #relay: Relay
  readonly #abort = new AbortController()
  readonly #over = Promise.withResolvers<void>()
  /** Resolves when nothing of the run remains. */
  readonly over = this.#over.promise
  #toolsToken = ''
  #state: 'preparing' | 'asking' | 'streaming' | 'ended' | 'over' = 'preparing'
  #source: AsyncIterator<Buffer> | undefined
  #sourceOver = false
  #prepared: PreparedRun | undefined
  #deadline: NodeJS.Timeout | undefined
  /** Ends the run when no other reader has come in time. */
  #readerDue: NodeJS.Timeout | undefined
  #unwound: NodeJS.Timeout | undefined

  constructor(host: RunContext, session: LiveSession, order: ExecuteRun, skills?: readonly SkillContent[]) {
    this.#host = host
    this.skills = skills
    this.apps = order.apps && appsOf(session, order.apps)
    this.permissions = session.profile.requireApproval && new Permissions(order.decided)
    this.session = session
    this.attempt = order.attempt ?? 1
    this.depth = order.depth ?? 0
    this.#relay = new Relay(order.runId, session.id, order.firstSeq, session.profile.workerMode === 'sandbox')
    this.output = new RunOutput(order, host.keepBytes, this)
  }

  /** Aborts when the runner ends the run. */
  get signal(): AbortSignal {
    return this.#abort.signal
  }
  get runId(): string {
    return this.output.runId
  }
  /** The token with which the executor of the run uses the session's tools until the run ends. Most runs never need it. */
  get toolsToken(): string {
    return (this.#toolsToken ||= randomBytes(32).toString('base64url'))
  }
  get ended(): boolean {
    return this.#state === 'ended' || this.#state === 'over'
  }

  /** Starts the run and returns its first reader. Call it once. */
  start(order: ExecuteRun, signal: AbortSignal): AsyncIterator<Buffer> {
    this.#deadline = setTimeout(() => this.end('timeout'), Math.min(order.timeoutMs + graceMs, maxTimerMs))
    this.#write(this.#relay.own({ type: 'progress', stage: 'runner_accepted' }))
    const { profile } = this.session
    const absent = profile.skills.length === 0 ? undefined : skillsAbsent(profile)
    if (absent) this.#write(this.#relay.own(absent))
    const reader = this.output.attach({ afterSeq: order.firstSeq - 1, epoch: this.output.epoch }, signal)
    // The order is dropped after the sidecar's first line: a prompt may be large, and a run may take long.
    void this.#begin(order).then(
      (first) => this.#carry(first),
      (error: unknown) => this.#broke(error),
    )
    return reader
  }
  /** Inserts an event between those of the sidecar. Does nothing when the run is over. */
  readonly report = (event: RuntimeEvent): void => {
    if (this.#state === 'preparing') this.#write(this.#relay.own(event))
    else if (!this.ended) this.#write(this.#relay.insert(event))
  }
  /** Called when a model call is over. Its usage counts, so the run can no longer be refused as if nothing had happened. */
  readonly #used = (usage: UsageEvent): void => {
    this.output.show()
    this.report(usage)
  }
  end(reason: EndCode): void {
    if (this.ended) return
    // The sidecar may have started the run already, so the conversation counts as changed.
    if (this.#state === 'asking' && this.#source) this.session.changes++
    this.#close(this.#relay.end(reason))
  }

  /** Ends the run for the reason that its reader gave. */
  stop(reason: unknown): void {
    this.end(isFailingStop(reason) ? reason : 'cancelled')
  }

  readerCame(): void {
    clearTimeout(this.#readerDue)
  }
  readerGone(reason: unknown): void {
    if (reason === ('shutdown' satisfies StreamEnd)) return this.end('runner_stopping')
    const isLeft = reason === leaving || reason === ('client_gone' satisfies StreamEnd)
    const { keepMs } = this.output
    if (!isLeft || keepMs === 0) return this.stop(reason)
    this.output.cut()
    if (!this.ended) this.#readerDue = setTimeout(() => this.end('cancelled'), keepMs)
  }

  /** Makes the run's sandbox ready, and resolves with the sidecar's first lines. */
  async #begin(order: ExecuteRun): Promise<IteratorResult<Buffer> | undefined> {
    const takenAt = Date.now()
    if (order.attachments) await requireLinks(this.#host.objects, this.session.tenantId, order.attachments)
    const { sandboxes } = this.#host.executors
    if (sandboxes && hasSandbox(this.session.profile)) {
      const resumes = this.session.conversation
      if (!resumes) this.output.show()
      const { budget, egress } = order
      const wanted = { resume: resumes, onUsage: this.#used, ...(budget && { budget }), ...(egress && { egress }) }
      this.#takePrepared(await sandboxes.prepare(this.session, wanted, this.#abort.signal))
    }
    return this.#ask(order, takenAt)
  }
  async #carry(first: IteratorResult<Buffer> | undefined): Promise<void> {
    let read = first
    try {
      while (read && !read.done && this.#relay.terminal?.by !== 'runner') {
        this.#take(read.value)
        const room = this.output.room
        if (room) await room
        // Read the stream to its end after the terminal line, which keeps the connection for the next run.
        read = await this.#source!.next()
      }
    } catch (error) {
      return this.#broke(error)
    }
    this.#answered()
    this.#sourceOver = true
    this.end('sidecar_lost')
    this.#finish()
  }
  #broke(error: unknown): void {
    this.#sourceOver = true
    if (!this.ended) this.#fail(error)
    this.#finish()
  }
  #takePrepared(ready: PreparedRun | undefined): void {
    // The run has ended meanwhile, so the prepared sandbox is given back.
    if (this.#state === 'over') return ready?.over()
    this.#prepared = ready
    if (ready?.calls) this.#relay.measuredBy(ready.calls)
    if (ready && this.#state === 'preparing') this.#write(this.#relay.own(ready.event))
  }
  /** Asks the sidecar to execute the run. The sidecar may still be closing the session's previous run, if the runner cut that run off. */
  async #ask(order: ExecuteRun, takenAt: number): Promise<IteratorResult<Buffer> | undefined> {
    if (this.#state !== 'preparing') return undefined
    this.#state = 'asking'
    const given = order.attachments ? await readableBy(order, this.session, this.#host) : order
    const envelope = this.#envelope(given, takenAt)
    const askedAt = Date.now()
    const ask = async (): Promise<IteratorResult<Buffer> | undefined> => {
      if (this.ended) return undefined
      const link = linkOf(this.#host.executors, this.session)
      this.#source = link.run(envelope, this.#abort.signal, this.#accepted)[Symbol.asyncIterator]()
      const answerDue = setTimeout(() => this.output.show(), stateMissingMs)
      try {
        return await this.#source.next()
      } catch (error) {
        this.#source = undefined
        throw error
      } finally {
        clearTimeout(answerDue)
      }
    }
    const mayPass = (error: unknown): boolean =>
      isAppError(error) &&
      (error.code === 'session_busy' || isAway(error)) &&
      Date.now() <= askedAt + (this.#canMove(error) ? awayMs : busyMs)
    return retry(ask, { firstMs: busyRetryMs, longestMs: busyRetryMs, mayPass })
  }
  /** What the sidecar is sent to execute the run. */
  #envelope(order: ExecuteRun, takenAt: number): RunEnvelope {
    const { session, apps } = this
    const handle = order.runtimeSessionId ?? session.runtimeSessionId
    const profile = this.skills ? withSkills(session.profile, this.skills) : session.profile
    // Tools and apps are called through this runner, and linked contents of this run or of the conversation are read from it.
    const asksRunner =
      session.tools.length > 0 || apps || profile.requireApproval || session.conversation || order.attachments
    return {
      runId: order.runId,
      sessionId: session.id,
      tenantId: session.tenantId,
      profile: apps ? withApps(profile, apps) : profile,
      prompt: order.prompt,
      ...(order.metadata ? { metadata: order.metadata } : {}),
      sessionMcpUrl: this.#host.mcpUrl(session.id),
      ...(asksRunner ? { sessionMcpToken: this.toolsToken } : {}),
      ...(handle === undefined ? {} : { runtimeSessionId: handle }),
      ...(session.conversation ? { resume: true } : {}),
      ...(order.awaited ? { awaited: true } : {}),
      firstSeq: this.#relay.next,
      timeoutMs: Math.max(1, order.timeoutMs - (Date.now() - takenAt)),
      ...(order.attachments ? { attachments: order.attachments } : {}),
      ...(order.responseFormat ? { responseFormat: order.responseFormat } : {}),
      ...(order.mcpServers ? { mcpServers: order.mcpServers } : {}),
      ...(order.mcpUnavailable ? { mcpUnavailable: order.mcpUnavailable } : {}),
      ...(order.attempt === undefined ? {} : { attempt: order.attempt }),
      ...(order.replay === undefined ? {} : { replay: order.replay }),
    }
  }
  /** Called when the sidecar took the run. A sidecar that should hold a conversation may still say that it lacks it. */
  readonly #accepted = (): void => {
    if (!this.session.conversation) this.output.show()
  }
  /** Called once the sidecar has taken the run: however the run ends, the conversation has changed. */
  #answered(): void {
    if (this.#state !== 'asking') return
    this.#state = 'streaming'
    this.session.changes++
    this.output.show()
  }
  #take(chunk: Buffer): void {
    this.#answered()
    if (this.ended) return
    const lines = this.#relay.pass(chunk)
    const { handle, terminal } = this.#relay
    if (handle !== undefined && !restoredFromLog(this.session.profile.runtime)) this.session.runtimeSessionId = handle
    if (terminal) this.#close(lines)
    else this.#write(lines)
  }
  #fail(error: unknown): void {
    this.#prepared?.calls?.end().forEach(this.#used)
    if (isAppError(error)) {
      // No reader has seen anything of the run yet, so it can be refused and tried again.
      if (this.output.withheld && (lacksState(error) || this.#canMove(error))) return this.#refuse(error)
      const { code, sentence, retryable } = error
      return this.#close(this.#relay.fail(code, sentence ?? endings.sidecar_lost.message, retryable))
    }
    if (error instanceof Error && error.name === 'OversizedLineError') return this.end('bad_event')
    this.#host.log.warn({ err: error, runId: this.runId }, 'a sidecar stream failed')
    this.end('sidecar_lost')
  }

  /** Another runner can take the run: what its sidecar would need is stored, and no sandbox here holds its files. */
  #canMove(error: AppError): boolean {
    const { conversation, profile } = this.session
    return isAway(error) && !hasSandbox(profile) && (!conversation || restoredFromLog(profile.runtime))
  }
  #markEnded(): void {
    this.#state = 'ended'
    clearTimeout(this.#deadline)
    clearTimeout(this.#readerDue)
  }
  #write(lines: Buffer): void {
    this.output.write(lines, this.#relay.next)
  }
  /** Ends the run. `lines` contain the terminal line. */
  #close(lines: Buffer): void {
    const terminal = this.#relay.terminal!
    this.#markEnded()
    if (terminal.by === 'sidecar') this.session.conversation = true
    // Free the session before the terminal line can be seen.
    this.#host.table.free(this.session, statusAfter(terminal))
    this.#write(lines)
    this.output.close()
    // When the sidecar failed by itself, the tools that it had called continue, so that the next attempt of the run gets their results.
    if (terminal.by === 'runner' && !this.#sourceOver)
      this.#abort.abort(new Error(`the run was ended: ${terminal.code}`))
    this.#unwind(terminal.by)
  }
  #refuse(error: AppError): void {
    this.#markEnded()
    if (readsNoLinks(error)) this.#host.table.free(this.session, 'idle')
    const unknown = readsNoLinks(error) ? error : this.#host.conversations.lost(this.session)
    this.output.close(error.code === 'session_state_missing' ? unknown : error)
  }
  /** Gives up the sidecar's stream, which `#carry` reads to its end. */
  #unwind(by: Terminal['by']): void {
    if (!this.#source) return this.#finish()
    if (by === 'runner') this.#source.return?.().catch(() => {})
    this.#unwound = setTimeout(() => {
      this.#abort.abort(new Error('the sidecar did not end its stream'))
      this.#finish()
    }, unwindMs)
  }
  #finish(): void {
    if (this.#state === 'over') return
    this.#state = 'over'
    clearTimeout(this.#unwound)
    this.#prepared?.over()
    this.output.owner = undefined
    this.#over.resolve()
    this.#host.over(this)
  }
}
