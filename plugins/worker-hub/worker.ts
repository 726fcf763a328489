import type { McpServer } from '#contracts/mcp-servers'
import type { ToolResult } from '#contracts/tools'
import type { PollAnswer } from '#contracts/wire/worker'
import type { WorkerChannel } from '#contracts/workers'
import { superseded, workerUnreachable } from './errors.ts'
import { askForState } from './export-state.ts'
import type { Mailbox } from './mailbox.ts'
import { createPresence } from './presence.ts'
import { createRuns } from './runs.ts'
import { createStateCopy, type StateCopy } from './state.ts'
import type { IssuedToken } from './token.ts'
import { createToolCalls } from './tool-calls.ts'
import type { Upload } from './upload.ts'

const shutdownMs = 1_000

/** One generation of a session's worker: the channel that the runner uses, and what its callbacks need. */
export interface Worker extends WorkerChannel {
  readonly tenantId: string
  /** Its callbacks are refused; the reason is what they are answered. */
  readonly closed: AbortSignal
  /** Something came from it. */
  seen(): void
  poll(request: PollRequest): Promise<PollAnswer>
  /** An answer to a poll has left. */
  left(answer: PollAnswer): void
  /** AppError 404 `unknown_run`. */
  takeEvents(runId: string, upload: Upload): void
  readonly stateRev: number
  takeState: StateCopy['take']
  /** False when nobody waits for it. */
  takeToolResult(callId: string, result: ToolResult): boolean
  /** It has a run. */
  readonly busy: boolean
  /** Of the run under way. */
  mcpServer(name: string): McpServer | undefined
  /** Goes on as `next`: this name of it is refused, what it was given is that one's. */
  retire(): void
}

export interface PollRequest {
  readonly after: number
  readonly tools: boolean
  readonly waitMs: number
  readonly signal: AbortSignal
  /** Of the token that came with it. */
  readonly expiresAt: number
}

export interface WorkerOptions {
  readonly tenantId: string
  readonly sessionId: string
  readonly generation: number
  readonly token: IssuedToken
  /** How long it may be silent. */
  readonly lostMs: number
  readonly mailbox: Mailbox
  /** Of the copy that its predecessor had. */
  readonly stateRev?: number
  readonly takesTools?: boolean
  bind(from: Worker, options: Pick<WorkerOptions, 'sessionId' | 'mailbox' | 'takesTools'>): Promise<Worker>
  onClose(): void
}

export function createWorker(options: WorkerOptions): Worker {
  const { tenantId, sessionId, generation, token, mailbox } = options
  const presence = createPresence(options.lostMs)
  const state = createStateCopy(options.stateRev)
  const runs = createRuns(mailbox, presence, token)
  const tools = createToolCalls(mailbox, presence)
  const closing = new AbortController()
  const closed = closing.signal
  let takesTools = options.takesTools ?? false
  /** It was given to another session. */
  let spent = false

  const retire = (): void => {
    const answer = superseded()
    runs.close(answer)
    tools.close()
    closing.abort(answer)
  }
  const worker: Worker = {
    tenantId,
    sessionId,
    generation,
    closed,
    get token() {
      return token.value
    },
    freshToken: () => token.fresh(),
    get lastPollAt() {
      return presence.lastPollAt
    },
    get state() {
      return state.bundle
    },
    get stateRev() {
      return state.rev
    },
    async connected(signal) {
      await presence.connected(AbortSignal.any([signal, closed])).catch((error: unknown) => {
        throw signal.aborted ? error : workerUnreachable({ retryable: true })
      })
    },
    endPoll: mailbox.endPoll,
    run: runs.run,
    async exportState() {
      if (presence.present) await askForState(mailbox, presence, state, closed)
      return state.bundle
    },
    setState: state.set,
    async callTool(name, input, limits) {
      if (!takesTools) return { ok: false, content: 'The sandbox takes no tool calls.' }
      return tools.call(name, input, limits)
    },
    async bind(other) {
      if (spent || closed.aborted) throw workerUnreachable({ retryable: true })
      spent = true
      try {
        return await options.bind(worker, { sessionId: other, mailbox, takesTools })
      } catch (error) {
        spent = false
        throw error
      }
    },
    async shutdown() {
      if (spent || closed.aborted) return
      const late = new AbortController()
      const timer = setTimeout(() => late.abort(), shutdownMs)
      await mailbox.taken(mailbox.push({ kind: 'shutdown' }), late.signal)
      clearTimeout(timer)
    },
    close() {
      if (spent || closed.aborted) return
      retire()
      mailbox.close(superseded())
      options.onClose()
    },
    seen: presence.seen,
    async poll({ after, tools: withTools, waitMs, signal, expiresAt }) {
      takesTools = withTools
      const over = presence.polls()
      try {
        const commands = [...(await mailbox.poll({ after, waitMs, signal }))]
        const renewed = await token.renewal(expiresAt)
        return { commands, ...(renewed === undefined ? {} : { token: renewed }) }
      } finally {
        over()
      }
    },
    left: ({ commands }) => mailbox.left(commands),
    takeEvents: runs.take,
    takeState(bundle, rev) {
      presence.seen()
      state.take(bundle, rev)
    },
    takeToolResult(callId, result) {
      presence.seen()
      return tools.answer(callId, result)
    },
    get busy() {
      return runs.busy
    },
    mcpServer: runs.mcpServer,
    retire,
  }
  return worker
}
