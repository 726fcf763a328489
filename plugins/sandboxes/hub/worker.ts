import type { AppError } from '#kernel'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { StateBundle } from '#contracts/runtime'
import type { ToolResult } from '#contracts/tools'
import { type SessionMemory, workerTokenErrors } from '#contracts/workers'
import type { ModelCalls } from '../egress/calls.ts'
import type { Letter, Mailbox } from './mailbox.ts'
import { createPresence } from './presence.ts'
import {
  createWorkerRuns,
  createWorkerToolCalls,
  type ReachedServer,
  type RunWay,
  type WorkerToolCalls,
} from './work.ts'
import { askForState, createStateCopy, type StateCopy } from './state.ts'
import type { IssuedToken } from './tokens.ts'
import type { Upload } from './upload.ts'
import { sandboxErrors } from '../errors.ts'

const shutdownMs = 1_000

/** The runner's end of one polling worker. It does not know where the worker runs. */
export interface WorkerChannel {
  readonly sessionId: string
  readonly generation: number
  /** The token for the worker's environment. */
  readonly token: string
  /** A token for a worker that starts anew, with at least half of its life left. AppError as `WorkerTokens.mint`. */
  freshToken(): Promise<string>
  /** The time of the last poll in ms since the epoch; undefined before the first one. */
  readonly lastPollAt: number | undefined
  /** Resolves once a poll of this generation is open; rejects when `signal` aborts or the channel closes. */
  connected(signal: AbortSignal): Promise<void>
  /** Answers an open poll with no commands. A live worker then polls again; a dead one has only left an open connection behind. */
  endPoll(): void
  /**
   * Sends a run and yields the worker's events, as `SidecarLink.run` does; it sends `cancel` when `signal` aborts, and ends early when the worker
   * stops polling. A worker without the conversation that the envelope resumes rejects with 409 `session_state_missing`. The runner forwards to
   * external servers, so MCP addresses and credentials of the envelope are replaced by the runner's address (`way.runnerUrl`) and the worker's token.
   */
  run(envelope: RunEnvelope, signal: AbortSignal, way: RunWay): AsyncIterable<Buffer>
  /**
   * Asks a polling worker to upload its state and waits for it. A worker that does not answer yields the last copy instead. Rejects with 429
   * `limit_reached` when there was no room for the worker's last state.
   */
  exportState(): Promise<StateBundle | undefined>
  /** The copy of the state that the worker reads at its start. Each upload replaces it. */
  readonly state: StateBundle | undefined
  /** Why there is no copy of the worker's newest state. */
  readonly stateRefused: AppError | undefined
  /** True when the worker's last poll said that it reads linked attachments from this runner. */
  readonly readsLinks: boolean
  setState(bundle: StateBundle | undefined): void
  /** `ok: false` when the worker takes no tools, does not answer in time or leaves. */
  callTool: WorkerToolCalls['call']
  /** Gives a warm worker its session: the same worker continues under another session id, generation and token. This channel is finished then. */
  bind(sessionId: string): Promise<WorkerChannel>
  /** Tells the worker to end. Resolves when the worker has received the command, or after a second. */
  shutdown(): Promise<void>
  /** Refuses the worker's token and everything that it sends from now on. Pending work ends with an error. */
  close(): void
}

interface PollRequest {
  readonly after: number
  readonly tools: boolean
  readonly links: boolean
  readonly waitMs: number
  readonly signal: AbortSignal
  /** When the token that came with the poll expires, in ms since the epoch. */
  readonly expiresAt: number
}

/** What a poll is answered with. */
export interface Answer {
  readonly commands: readonly Letter[]
  /** Replaces the token that the worker has. */
  readonly token?: string
}

/** The parts of a worker that stay when it gets another session. */
export interface Continued {
  readonly sessionId: string
  readonly mailbox: Mailbox
  readonly takesTools?: boolean
  readonly readsLinks?: boolean
}

export interface RemoteWorkerOptions extends Continued {
  readonly tenantId: string
  readonly generation: number
  readonly token: IssuedToken
  /** How long the worker may be silent, in ms. */
  readonly lostMs: number
  /** Counts the bytes of the worker's states. */
  readonly memory: SessionMemory
  /** The revision of the predecessor's copy of the state. */
  readonly stateRev?: number
  bind(from: RemoteWorker, options: Continued): Promise<RemoteWorker>
  onClose(): void
}

/** One generation of a session's worker: the channel that the runner uses, and what its callbacks need. */
export class RemoteWorker implements WorkerChannel {
  readonly tenantId: string
  readonly sessionId: string
  readonly generation: number
  readonly #options: RemoteWorkerOptions
  readonly #presence
  readonly #state: StateCopy
  readonly #runs
  readonly #toolCalls: WorkerToolCalls
  readonly #closing = new AbortController()
  /** Bytes of states that are being uploaded. */
  #incoming = 0
  #takesTools: boolean
  #readsLinks: boolean
  /** True once the worker was given to another session. */
  #spent = false

  constructor(options: RemoteWorkerOptions) {
    this.tenantId = options.tenantId
    this.sessionId = options.sessionId
    this.generation = options.generation
    this.#options = options
    this.#presence = createPresence(options.lostMs)
    this.#state = createStateCopy(options.stateRev)
    this.#runs = createWorkerRuns(options.mailbox, this.#presence, options.token)
    this.#toolCalls = createWorkerToolCalls(options.mailbox, this.#presence)
    this.#takesTools = options.takesTools ?? false
    this.#readsLinks = options.readsLinks ?? false
  }

  get readsLinks(): boolean {
    return this.#readsLinks
  }
  get token(): string {
    return this.#options.token.value
  }
  get lastPollAt(): number | undefined {
    return this.#presence.lastPollAt
  }
  get state(): StateBundle | undefined {
    return this.#state.bundle
  }
  get stateRefused(): AppError | undefined {
    return this.#state.refused
  }
  get stateRev(): number {
    return this.#state.rev
  }
  /** True during a run. */
  get busy(): boolean {
    return this.#runs.busy
  }
  /** The model calls of the present run. */
  get calls(): ModelCalls | undefined {
    return this.#runs.calls
  }
  /** Aborts when callbacks must be refused. The reason is the error for them. */
  get closed(): AbortSignal {
    return this.#closing.signal
  }

  freshToken(): Promise<string> {
    return this.#options.token.fresh()
  }

  async connected(signal: AbortSignal): Promise<void> {
    await this.#presence.connected(AbortSignal.any([signal, this.closed])).catch((error: unknown) => {
      throw signal.aborted ? error : sandboxErrors.sidecarUnreachable()
    })
  }

  endPoll(): void {
    this.#options.mailbox.endPoll()
  }

  run(envelope: RunEnvelope, signal: AbortSignal, way: RunWay): AsyncIterable<Buffer> {
    return this.#runs.run(envelope, signal, way)
  }

  async exportState(): Promise<StateBundle | undefined> {
    if (this.#presence.present) await askForState(this.#options.mailbox, this.#presence, this.#state, this.closed)
    if (this.#state.refused) throw this.#state.refused
    return this.#state.bundle
  }

  setState(bundle: StateBundle | undefined): void {
    this.#state.set(bundle)
  }

  async callTool(...call: Parameters<WorkerToolCalls['call']>): Promise<ToolResult> {
    if (!this.#takesTools) return { ok: false, content: 'The worker of this sandbox does not execute tools.' }
    return this.#toolCalls.call(...call)
  }

  async bind(sessionId: string): Promise<RemoteWorker> {
    if (this.#spent || this.closed.aborted) throw sandboxErrors.sidecarUnreachable()
    this.#spent = true
    try {
      const { mailbox } = this.#options
      return await this.#options.bind(this, {
        sessionId,
        mailbox,
        takesTools: this.#takesTools,
        readsLinks: this.#readsLinks,
      })
    } catch (error) {
      this.#spent = false
      throw error
    }
  }

  async shutdown(): Promise<void> {
    if (this.#spent || this.closed.aborted) return
    const { mailbox } = this.#options
    const late = new AbortController()
    const timer = setTimeout(() => late.abort(), shutdownMs)
    await mailbox.taken(mailbox.push({ kind: 'shutdown' }), late.signal)
    clearTimeout(timer)
  }

  close(): void {
    if (this.#spent || this.closed.aborted) return
    this.retire()
    this.#options.mailbox.close(workerTokenErrors.superseded())
    this.#options.onClose()
  }

  /** Called when the worker continues under another session id. Callbacks under this id are refused, and the commands belong to the other channel. */
  retire(): void {
    const answer: AppError = workerTokenErrors.superseded()
    this.#runs.close(answer)
    this.#toolCalls.close()
    this.#closing.abort(answer)
  }

  /** Must be called when the worker has sent something. */
  seen(): void {
    this.#presence.seen()
  }

  async poll({ after, tools, links, waitMs, signal, expiresAt }: PollRequest): Promise<Answer> {
    this.#takesTools = tools
    this.#readsLinks = links
    const over = this.#presence.polls()
    try {
      const commands = await this.#options.mailbox.poll({ after, waitMs, signal })
      const renewed = await this.#options.token.renewal(expiresAt)
      return { commands, ...(renewed === undefined ? {} : { token: renewed }) }
    } finally {
      over()
    }
  }

  /** Must be called when an answer to a poll was sent. */
  left({ commands }: Answer): void {
    this.#options.mailbox.left(commands)
  }

  /** AppError 404 `unknown_run`. */
  takeEvents(runId: string, upload: Upload): void {
    this.#runs.take(runId, upload)
  }

  /**
   * Reserves room for a state of so many bytes. AppError 429 `limit_reached` when there is no room, even without the present copy. Otherwise the
   * caller must call `stateArrived`, however the upload ends.
   */
  expectState(bytes: number): void {
    this.#incoming += bytes
    try {
      this.#countState()
    } catch (error) {
      // The upload will replace the present copy, so the copy is dropped to make room.
      this.#state.refuse(error as AppError)
      try {
        this.#countState()
      } catch (refusal) {
        this.stateArrived(bytes)
        throw refusal
      }
    }
  }
  stateArrived(bytes: number): void {
    this.#incoming -= bytes
    try {
      this.#countState()
    } catch {
      // The session is no longer on this runner, so nothing is counted.
    }
  }
  takeState(...copy: Parameters<StateCopy['take']>): void {
    this.#presence.seen()
    this.#state.take(...copy)
  }
  #countState(): void {
    const { memory } = this.#options
    memory.hold(this.tenantId, this.sessionId, this.#incoming + (this.#state.bundle?.bytes.byteLength ?? 0))
  }

  /** False when no call waits for this result. */
  takeToolResult(callId: string, result: ToolResult): boolean {
    this.#presence.seen()
    return this.#toolCalls.answer(callId, result)
  }

  /** An external MCP server of the present run. */
  mcpServer(name: string): ReachedServer | undefined {
    return this.#runs.mcpServer(name)
  }
}
