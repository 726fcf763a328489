import { randomUUID } from 'node:crypto'
import { type AppError, linesOf } from '#kernel'
import type { McpServer } from '#contracts/mcp-servers'
import type { RunEnvelope } from '#contracts/run-envelope'
import { parseLine, peekType } from '#contracts/run-event'
import { settleFilesMs, workerPaths } from '#contracts/wire/worker'
import type { ToolResult } from '#contracts/tools'
import type { ModelCalls } from '../egress/calls.ts'
import type { RunEgress } from '../egress/run-egress.ts'
import type { Mailbox } from './mailbox.ts'
import type { Presence } from './presence.ts'
import type { IssuedToken } from './tokens.ts'
import type { Upload } from './upload.ts'
import { sandboxErrors } from '../errors.ts'

/** What the worker may reach during a run. */
export interface RunWay {
  /** The runner's address as the worker sees it. */
  readonly runnerUrl: string
  /** Permits and measures the model calls of the run. */
  readonly calls: ModelCalls
  /** The hosts that the sandbox may reach; undefined for none. */
  readonly egress?: RunEgress | undefined
  /** True when the runtime itself may change files of the VirtualFS. */
  readonly vfs?: boolean
}

/** An external MCP server during a run. */
export interface ReachedServer {
  readonly server: McpServer
  /** Aborts when the run is over. */
  readonly signal: AbortSignal
}

/** The runs of one worker. Only one can run at a time. */
interface WorkerRuns {
  run(envelope: RunEnvelope, signal: AbortSignal, way: RunWay): AsyncGenerator<Buffer>
  /** Gives a run the upload of its events. AppError 404 `unknown_run`. */
  take(runId: string, upload: Upload): void
  readonly busy: boolean
  /** The model calls of the present run. */
  readonly calls: ModelCalls | undefined
  /** An external MCP server of the present run, as the run's envelope names it. */
  mcpServer(name: string): ReachedServer | undefined
  /** Refuses all further runs. A running upload is answered with this error. */
  close(answer: AppError): void
}

interface UnderWay {
  readonly events: RunEvents
  readonly mcpServers: readonly McpServer[]
  readonly calls: ModelCalls
  /** Aborts when the run is over. */
  readonly signal: AbortSignal
  /** Withdraws the command to run. True when the worker may have begun already. */
  withdraw(): boolean
}

export function createWorkerRuns(mailbox: Mailbox, presence: Presence, token: IssuedToken): WorkerRuns {
  let current: UnderWay | undefined
  let closed = false
  return {
    async *run(envelope, signal, { runnerUrl, calls, egress, vfs }) {
      // A worker may have been paused for a day, so its last token may have expired.
      const credential = await token.fresh()
      if (closed) throw sandboxErrors.sidecarUnreachable()
      if (current) throw sandboxErrors.sessionBusy()
      signal.throwIfAborted()
      const { runId, mcpServers = [] } = envelope
      const events = awaitEvents(runId, envelope.resume === true)
      const told = {
        ...envelopeForWorker(envelope, runnerUrl, credential),
        ...(egress ? { egress: egress.accessAt(runnerUrl) } : {}),
        ...(vfs ? { vfs } : {}),
      }
      const command = mailbox.push({ kind: 'run', envelope: told })
      const withdraw = (): boolean => mailbox.withdraw(command)
      const over = new AbortController()
      current = { events, mcpServers, calls, signal: over.signal, withdraw }
      const abort = (): void => events.end(signal.reason as Error)
      signal.addEventListener('abort', abort)
      const stopWatching = presence.watch(() => events.end(sandboxErrors.sidecarLost()))
      let whole = false
      try {
        yield* events.read()
        whole = true
      } finally {
        stopWatching()
        signal.removeEventListener('abort', abort)
        current = undefined
        over.abort(sandboxErrors.noRunUnderWay())
        if (withdraw() && !whole) mailbox.push({ kind: 'cancel', runId })
      }
    },
    take(runId, upload) {
      if (current?.events.runId !== runId) throw sandboxErrors.unknownRun()
      current.events.take(upload)
    },
    get busy() {
      return current !== undefined
    },
    get calls() {
      return current?.calls
    },
    mcpServer(name) {
      const server = current?.mcpServers.find((one) => one.name === name)
      return current && server && { server, signal: current.signal }
    },
    close(answer) {
      closed = true
      if (!current) return
      const error = current.withdraw() ? sandboxErrors.sidecarLost : sandboxErrors.sidecarUnreachable
      current.events.end(error(), answer)
    },
  }
}

/** The events of one run. The worker uploads them on its own initiative. */
interface RunEvents {
  readonly runId: string
  /** AppError 404 `unknown_run` when the run is over or has an upload. */
  take(upload: Upload): void
  /** Ends the run: the reader gets `thrown`, the worker gets `answer`. */
  end(thrown: Error, answer?: AppError): void
  read(): AsyncGenerator<Buffer>
}

/** `resume`: the run continues a conversation that the worker should have. */
function awaitEvents(runId: string, resume: boolean): RunEvents {
  const arrival = Promise.withResolvers<Upload>()
  arrival.promise.catch(() => {})
  let upload: Upload | undefined
  let over = false
  const end = (thrown: Error, answer: AppError = sandboxErrors.unknownRun()): void => {
    if (over) return
    over = true
    arrival.reject(thrown)
    upload?.end(answer, thrown)
  }
  return {
    runId,
    take(arrived) {
      if (over || upload) throw sandboxErrors.unknownRun()
      upload = arrived
      arrival.resolve(arrived)
    },
    end,
    async *read() {
      try {
        let first = true
        for await (const chunk of (await arrival.promise).lines()) {
          const refusal = first ? refusalOf(chunk, resume) : undefined
          if (refusal) throw refusal
          first = false
          yield chunk
        }
        over = true
      } finally {
        end(sandboxErrors.unknownRun())
      }
    },
  }
}

/** A worker cannot refuse a run with an HTTP status, so it sends the refusal as the only event of the run. */
function refusalOf(chunk: Buffer, resume: boolean): AppError | undefined {
  const [line] = linesOf(chunk)
  if (!line || peekType(line) !== 'error') return undefined
  const code = parseLine(line)?.['code']
  if (code === 'session_busy') return sandboxErrors.sessionBusy()
  return code === 'session_state_missing' && resume ? sandboxErrors.sessionStateMissing() : undefined
}

const notForwarded = 'Servers with SSE cannot be reached from a sandbox; use streamable HTTP.'

/** The envelope for the worker: each address is the runner's as the worker sees it, and each credential is the worker's own token. */
function envelopeForWorker(envelope: RunEnvelope, runnerUrl: string, token: string): RunEnvelope {
  const { sessionMcpUrl, sessionMcpToken: _, mcpServers, mcpUnavailable = [], ...rest } = envelope
  const [forwarded, direct] = [false, true].map((is) =>
    mcpServers?.filter(({ transport }) => (transport === 'sse') === is),
  )
  const without = [...mcpUnavailable, ...(direct ?? []).map(({ name }) => ({ server: name, message: notForwarded }))]
  const base = runnerUrl.replace(/\/+$/, '')
  const paths = workerPaths(envelope.sessionId)
  return {
    ...rest,
    ...(sessionMcpUrl === undefined ? {} : { sessionMcpUrl: base + paths.sessionMcp, sessionMcpToken: token }),
    ...(without.length > 0 ? { mcpUnavailable: without } : {}),
    ...(forwarded === undefined
      ? {}
      : {
          mcpServers: forwarded.map(({ name, tools }) => ({
            name,
            ...(tools ? { tools } : {}),
            url: base + paths.mcpServer(name),
            headers: { authorization: `Bearer ${token}` },
          })),
        }),
  }
}

/** How much longer than the worker the runner waits: the worker's own timeout gives the better error message. */
const graceMs = 1_000

export interface WorkerToolCalls {
  /** Calls a tool of the worker. With `vfs` the worker settles its files before and after the call, and the runner waits longer. */
  call(
    name: string,
    input: Readonly<Record<string, unknown>>,
    options: { readonly signal: AbortSignal; readonly timeoutMs: number; readonly vfs?: boolean },
  ): Promise<ToolResult>
  /** False when no call waits for this result. */
  answer(callId: string, result: ToolResult): boolean
  close(): void
}

const failed = (content: string): ToolResult => ({ ok: false, content })
const gone = failed('The sandbox has left.')
const tooMuch = failed('Too much waits for this sandbox.')

/** The running tool calls of one worker. */
export function createWorkerToolCalls(mailbox: Mailbox, presence: Presence): WorkerToolCalls {
  const waiting = new Map<string, (result: ToolResult) => unknown>()
  let closed = false
  return {
    call(name, input, { signal, timeoutMs, vfs = false }) {
      if (closed) return Promise.resolve(gone)
      if (signal.aborted) return Promise.resolve(failed('The call was cancelled.'))
      if (!mailbox.hasRoom) return Promise.resolve(tooMuch)
      return new Promise((resolve) => {
        const callId = randomUUID()
        /** Withdraws the command, which a worker need not acknowledge. True when the worker may have begun. */
        const settle = (result: ToolResult): boolean => {
          waiting.delete(callId)
          clearTimeout(late)
          stopWatching()
          signal.removeEventListener('abort', cancel)
          resolve(result)
          return mailbox.withdraw(command)
        }
        const giveUp = (content: string): void => {
          if (settle(failed(content))) mailbox.push({ kind: 'tool_cancel', callId })
        }
        const cancel = (): void => giveUp('The call was cancelled.')
        const late = setTimeout(
          () => giveUp('The sandbox took too long.'),
          timeoutMs + (vfs ? 2 * settleFilesMs : 0) + graceMs,
        )
        const stopWatching = presence.watch(() => giveUp('The sandbox does not answer.'))
        signal.addEventListener('abort', cancel, { once: true })
        waiting.set(callId, settle)
        const files = vfs ? { vfs } : {}
        const command = mailbox.push({ kind: 'tool', callId, name, input: { ...input }, timeoutMs, ...files })
      })
    },
    answer(callId, result) {
      const settle = waiting.get(callId)
      settle?.(result)
      return settle !== undefined
    },
    close() {
      closed = true
      for (const settle of waiting.values()) settle(gone)
    },
  }
}
