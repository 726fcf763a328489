import { Client, type Dispatcher, Pool } from 'undici'
import { exchange, readBody } from '#kit'
import type { StateBundle } from '#contracts/runtime'
import type { ToolResult } from '#contracts/tools'
import { runtimeSessionIdHeader, workerProtocolHeader } from '#contracts/wire/sidecar'
import { maxStateBytes, type PollAnswer, stateRevHeader, workerPaths, workerProtocol } from '#contracts/wire/worker'
import type { WorkerIdentity } from '#contracts/workers'
import { type Answer, jsonOf, refusal, wordsOf } from './answer.ts'
import { runnerAway, stateTooLarge, workerRefused } from './errors.ts'

/** A state with its count of uploads: the higher one is the newer. */
export interface RevisedState {
  readonly rev: number
  readonly bundle: StateBundle
}

/** The runner's end of this worker, as the wire API says. Everything is sent under the session and token of the moment. */
export interface Runner {
  /** Undefined: nothing came in time. */
  poll(
    query: { readonly after: number; readonly tools: boolean; readonly wait: number },
    signal: AbortSignal,
  ): Promise<PollAnswer | undefined>
  /** Streams a run. Rejects as soon as the runner stops taking it. */
  upload(runId: string, lines: AsyncIterable<Buffer>, signal: AbortSignal): Promise<void>
  /** Without a bundle: since that count the runner has none. */
  state(signal: AbortSignal): Promise<{ readonly rev: number; readonly bundle: StateBundle | undefined }>
  putState(state: RevisedState, signal: AbortSignal): Promise<void>
  deleteState(rev: number, signal: AbortSignal): Promise<void>
  answerTool(callId: string, result: ToolResult, signal: AbortSignal): Promise<void>
  close(): Promise<void>
}

const connectMs = 5_000
/** How much later than promised the answer to a poll may come. */
const latePollMs = 15_000
/** Anything else than a poll is answered as soon as it has arrived. */
const answerMs = 60_000
/** A run's envelope may have 24 MiB and more; what comes with it is small. */
const maxPollBytes = 64 * 1024 * 1024
const maxSmallBytes = 64 * 1024

export function createRunner(identity: WorkerIdentity): Runner {
  const { origin } = new URL(identity.runnerUrl)
  const prefix = identity.runnerUrl.slice(origin.length)
  const pool = new Pool(origin, { connections: null, pipelining: 1, connect: { timeout: connectMs } })
  const uploads = new Set<Client>()
  const paths = () => workerPaths(identity.sessionId)
  const authorized = (headers: Readonly<Record<string, string>> = {}): Record<string, string> => ({
    authorization: `Bearer ${identity.token}`,
    ...headers,
  })
  const lost = (cause: Error): Error => runnerAway({ cause, retryable: true })

  const ask = async (
    request: Pick<Dispatcher.DispatchOptions, 'method' | 'path' | 'body'> & {
      readonly headers?: Record<string, string>
    },
    { signal, ms = answerMs, maxBytes = maxSmallBytes }: { signal: AbortSignal; ms?: number; maxBytes?: number },
  ): Promise<Answer> => {
    const limit = AbortSignal.timeout(ms)
    const sent = {
      ...request,
      path: prefix + request.path,
      headers: authorized(request.headers),
      headersTimeout: 0,
      bodyTimeout: 0,
    }
    try {
      const { status, headers, body } = await exchange(pool, sent, { signal: AbortSignal.any([signal, limit]), lost })
      return { status, headers, bytes: await readBody(body, maxBytes) }
    } catch (cause) {
      throw limit.aborted ? runnerAway({ cause, retryable: true }) : cause
    }
  }
  /** For requests whose answer says nothing but yes or no. */
  const tell = async (...[request, options]: Parameters<typeof ask>): Promise<void> => {
    const answer = await ask(request, options)
    if (answer.status < 200 || answer.status > 299) throw refusal(answer)
  }

  return {
    async poll({ after, tools, wait }, signal) {
      const path = `${paths().poll}?after=${after}&wait=${wait}${tools ? '&tools=1' : ''}`
      const headers = { [workerProtocolHeader]: workerProtocol }
      const answer = await ask(
        { method: 'GET', path, headers },
        { signal, ms: wait + latePollMs, maxBytes: maxPollBytes },
      )
      if (answer.status === 204) return undefined
      if (answer.status === 400)
        throw workerRefused({ message: `The runner does not take this worker: ${wordsOf(answer)}` })
      if (answer.status !== 200) throw refusal(answer)
      const said = jsonOf(answer.bytes)
      if (!Array.isArray(said?.['commands']))
        throw runnerAway({ message: 'What answers is no runner.', retryable: true })
      return said as unknown as PollAnswer
    },

    async upload(runId, lines, signal) {
      // A connection of its own: one that was used before may be dying, and a run's lines can be sent only once. The body
      // may wait for its runtime and for the runner's reader as long as it likes: the run has a deadline.
      const client = new Client(origin, { connect: { timeout: connectMs }, headersTimeout: 0, bodyTimeout: 0 })
      uploads.add(client)
      try {
        const { status, headers, body } = await exchange(
          client,
          {
            method: 'POST',
            path: `${prefix}${paths().events}?runId=${encodeURIComponent(runId)}`,
            headers: authorized({ 'content-type': 'application/x-ndjson' }),
            body: lines as never,
          },
          { signal, lost },
        )
        const answer = { status, headers, bytes: await readBody(body, maxSmallBytes) }
        if (status < 200 || status > 299) throw refusal(answer)
      } finally {
        uploads.delete(client)
        await client.destroy()
      }
    },

    async state(signal) {
      const answer = await ask({ method: 'GET', path: paths().state }, { signal, maxBytes: maxStateBytes })
      if (answer.status === 404 || answer.status === 204) return { rev: revOf(answer), bundle: undefined }
      if (answer.status !== 200) throw refusal(answer)
      return { rev: revOf(answer), bundle: bundleOf(answer) }
    },

    async putState({ rev, bundle }, signal) {
      const { bytes, contentType, runtimeSessionId } = bundle
      const headers = {
        'content-type': contentType,
        [stateRevHeader]: String(rev),
        ...(runtimeSessionId === undefined ? {} : { [runtimeSessionIdHeader]: runtimeSessionId }),
      }
      await tell({ method: 'PUT', path: paths().state, headers, body: bytes as Buffer }, { signal })
    },

    deleteState: (rev, signal) =>
      tell({ method: 'DELETE', path: paths().state, headers: { [stateRevHeader]: String(rev) } }, { signal }),

    answerTool: (callId, result, signal) =>
      tell(
        {
          method: 'PUT',
          path: paths().tool(callId),
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify(result),
        },
        { signal },
      ),

    async close() {
      await Promise.all([pool, ...uploads].map((dispatcher) => dispatcher.destroy()))
    },
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
  if (!answer.bytes) throw stateTooLarge()
  const runtimeSessionId = header(answer, runtimeSessionIdHeader)
  return {
    bytes: answer.bytes,
    contentType: header(answer, 'content-type') ?? 'application/octet-stream',
    ...(runtimeSessionId === undefined ? {} : { runtimeSessionId }),
  }
}
