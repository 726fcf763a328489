import { type AppError, isAppError } from '#kernel'
import type { StateBundle } from '#contracts/runtime'
import type { ToolResult } from '#contracts/tools'
import { runtimeSessionIdHeader, workerProtocolHeader } from '#contracts/wire/sidecar'
import { maxStateBytes, type PollAnswer, stateRevHeader, workerPaths, workerProtocol } from '#contracts/wire/worker'
import { type Answer, connect, type Request } from './connection.ts'
import type { WorkerIdentity } from './identity/identity.ts'
import { workerErrors } from './errors.ts'
import { type RemoteFiles, remoteFiles } from './vfs/remote.ts'

export const isRefusal = (error: unknown): boolean => isAppError(error) && error.code === 'worker_refused'

/** A state with its revision, which counts the uploads. The higher revision is the newer one. */
export interface RevisedState {
  readonly rev: number
  readonly bundle: StateBundle
}

/**
 * The runner's wire API for workers. Each request uses the present session and token. AppError `runner_unreachable` when the request may be retried,
 * `worker_refused` when the worker must end.
 */
export interface RunnerClient {
  /** Waits up to `wait` ms for commands after the id `after`. Undefined when none came. */
  poll(query: { readonly after: number; readonly wait: number }, signal: AbortSignal): Promise<PollAnswer | undefined>
  /** Streams the events of a run. Rejects as soon as the runner stops taking them. */
  upload(runId: string, lines: AsyncIterable<Buffer>, signal: AbortSignal): Promise<void>
  /** The runner's copy of the state. Without a bundle, the runner has had no copy since this revision. */
  state(signal: AbortSignal): Promise<{ readonly rev: number; readonly bundle: StateBundle | undefined }>
  putState(state: RevisedState, signal: AbortSignal): Promise<void>
  deleteState(rev: number, signal: AbortSignal): Promise<void>
  answerTool(callId: string, result: ToolResult, signal: AbortSignal): Promise<void>
  /** The session's files in the VirtualFS. */
  readonly files: RemoteFiles
  close(): Promise<void>
}

/** How much later than promised the answer to a poll may come. */
const latePollMs = 15_000
/** The envelope of a run may have 24 MiB and more. The other commands are small. */
const maxPollBytes = 64 * 1024 * 1024

export function createRunnerClient(identity: WorkerIdentity): RunnerClient {
  const connection = connect(identity)
  const paths = () => workerPaths(identity.sessionId)
  /** Sends a request and checks only the status of its answer. */
  const tell = async (request: Request, signal: AbortSignal): Promise<void> => {
    const answer = await connection.ask(request, { signal })
    if (!succeeded(answer)) throw refusal(answer)
  }
  return {
    async poll({ after, wait }, signal) {
      const path = `${paths().poll}?after=${after}&wait=${wait}&tools=1&links=1`
      const headers = { [workerProtocolHeader]: workerProtocol }
      const limits = { signal, ms: wait + latePollMs, maxBytes: maxPollBytes }
      const answer = await connection.ask({ method: 'GET', path, headers }, limits)
      if (answer.status === 204) return undefined
      if (answer.status === 400)
        throw workerErrors.workerRefused({ message: `The runner does not take this worker: ${wordsOf(answer)}` })
      if (answer.status !== 200) throw refusal(answer)
      const said = jsonOf(answer.bytes)
      if (!Array.isArray(said?.['commands']))
        throw workerErrors.runnerUnreachable({ message: 'What answers is no runner.' })
      return said as unknown as PollAnswer
    },
    async upload(runId, lines, signal) {
      const path = `${paths().events}?runId=${encodeURIComponent(runId)}`
      const headers = { 'content-type': 'application/x-ndjson' }
      const answer = await connection.send({ method: 'POST', path, headers, body: lines as never }, signal)
      if (!succeeded(answer)) throw refusal(answer)
    },
    async state(signal) {
      const answer = await connection.ask({ method: 'GET', path: paths().state }, { signal, maxBytes: maxStateBytes })
      if (answer.status === 404 || answer.status === 204) return { rev: revOf(answer), bundle: undefined }
      if (answer.status !== 200) throw refusal(answer)
      return { rev: revOf(answer), bundle: bundleOf(answer) }
    },
    putState({ rev, bundle: { bytes, contentType, runtimeSessionId } }, signal) {
      const headers = {
        'content-type': contentType,
        [stateRevHeader]: String(rev),
        ...(runtimeSessionId === undefined ? {} : { [runtimeSessionIdHeader]: runtimeSessionId }),
      }
      return tell({ method: 'PUT', path: paths().state, headers, body: bytes as Buffer }, signal)
    },
    deleteState: (rev, signal) =>
      tell({ method: 'DELETE', path: paths().state, headers: { [stateRevHeader]: String(rev) } }, signal),
    answerTool(callId, result, signal) {
      const headers = { 'content-type': 'application/json' }
      return tell({ method: 'PUT', path: paths().tool(callId), headers, body: JSON.stringify(result) }, signal)
    },
    files: remoteFiles(identity, connection),
    close: connection.close,
  }
}

const succeeded = ({ status }: Answer): boolean => status >= 200 && status <= 299

/** The error for an unsuccessful status. */
function refusal(answer: Answer): AppError {
  const { status } = answer
  const words = wordsOf(answer)
  if (status === 401) return workerErrors.workerRefused({ message: `The runner refuses this worker: ${words}` })
  const message = `The runner answers ${status}: ${words}`
  return passing.has(status) ? workerErrors.runnerUnreachable({ message }) : workerErrors.runnerRefused({ message })
}

/** Statuses of a runner that boots, stops or is overloaded, or of a proxy in front of it. The request may be retried. */
const passing: ReadonlySet<number> = new Set([429, 502, 503, 504])

/** How many characters of a runner's error go to stderr. */
const maxWords = 500

function wordsOf({ status, bytes }: Answer): string {
  const said = jsonOf(bytes)
  const words = [said?.['error'], said?.['message']].filter((part) => typeof part === 'string' && part !== '')
  return (words.join(': ') || `status ${status}`).slice(0, maxWords)
}

function jsonOf(bytes: Buffer | undefined): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(bytes?.toString('utf8') ?? '')
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}

const header = ({ headers }: Answer, name: string): string | undefined => {
  const value = headers[name]
  return typeof value === 'string' && value !== '' ? value : undefined
}

function revOf(answer: Answer): number {
  const rev = Number(header(answer, stateRevHeader))
  return Number.isSafeInteger(rev) && rev > 0 ? rev : 0
}

function bundleOf(answer: Answer): StateBundle {
  if (!answer.bytes) throw workerErrors.stateTooLarge()
  const runtimeSessionId = header(answer, runtimeSessionIdHeader)
  return {
    bytes: answer.bytes,
    contentType: header(answer, 'content-type') ?? 'application/octet-stream',
    ...(runtimeSessionId === undefined ? {} : { runtimeSessionId }),
  }
}
