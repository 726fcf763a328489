import { Client, type Dispatcher, Pool } from 'undici'
import { exchange, readBody, type Reply } from '#kit'
import type { WorkerIdentity } from './identity/identity.ts'
import { workerErrors } from './errors.ts'

const connectMs = 5_000
/** The default limit for a request. */
const answerMs = 60_000
const maxSmallBytes = 64 * 1024

export type Request = Pick<Dispatcher.DispatchOptions, 'method' | 'path' | 'body'> & {
  readonly headers?: Record<string, string>
}

/** An answer of the runner that was read completely. */
export interface Answer {
  readonly status: number
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  /** Undefined when the body was longer than allowed. */
  readonly bytes: Buffer | undefined
}

export interface Connection {
  ask(
    request: Request,
    limits: { readonly signal: AbortSignal; readonly ms?: number; readonly maxBytes?: number },
  ): Promise<Answer>
  /** Sends a stream without a time limit. */
  send(request: Request, signal: AbortSignal): Promise<Answer>
  /** Resolves to the answer while it arrives. The caller must read its body to the end. Only the signal limits its time. */
  open(request: Request, signal: AbortSignal): Promise<Reply>
  close(): Promise<void>
}

/** Requests to the runner. Each is sent with the present token. */
export function connect(identity: WorkerIdentity): Connection {
  const { origin } = new URL(identity.runnerUrl)
  const prefix = identity.runnerUrl.slice(origin.length)
  const pool = new Pool(origin, { connections: null, pipelining: 1, connect: { timeout: connectMs } })
  const uploads = new Set<Client>()
  const lost = (cause: Error): Error => workerErrors.runnerUnreachable({ cause })
  const begin = (dispatcher: Dispatcher, request: Request, signal: AbortSignal): Promise<Reply> => {
    const sent = {
      ...request,
      path: prefix + request.path,
      headers: { authorization: `Bearer ${identity.token}`, ...request.headers },
      headersTimeout: 0,
      bodyTimeout: 0,
    }
    return exchange(dispatcher, sent, { signal, lost })
  }
  const exchanged = async (
    dispatcher: Dispatcher,
    request: Request,
    signal: AbortSignal,
    maxBytes: number,
  ): Promise<Answer> => {
    const { status, headers, body } = await begin(dispatcher, request, signal)
    return { status, headers, bytes: await readBody(body, maxBytes) }
  }
  return {
    async ask(request, { signal, ms = answerMs, maxBytes = maxSmallBytes }) {
      const limit = AbortSignal.timeout(ms)
      try {
        return await exchanged(pool, request, AbortSignal.any([signal, limit]), maxBytes)
      } catch (cause) {
        throw limit.aborted ? workerErrors.runnerUnreachable({ cause }) : cause
      }
    },
    async send(request, signal) {
      // Each upload has its own connection: a pooled one may be dying, and the lines of a run can be sent only once. There is no body timeout,
      // because the body may wait for the runtime or for the runner's reader; the deadline of the run limits it.
      const client = new Client(origin, { connect: { timeout: connectMs }, headersTimeout: 0, bodyTimeout: 0 })
      uploads.add(client)
      try {
        return await exchanged(client, request, signal, maxSmallBytes)
      } finally {
        uploads.delete(client)
        await client.destroy()
      }
    },
    open: (request, signal) => begin(pool, request, signal),
    async close() {
      await Promise.all([pool, ...uploads].map((dispatcher) => dispatcher.destroy()))
    },
  }
}
