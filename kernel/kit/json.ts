import type { Dispatcher } from 'undici'
import type { Reply } from './answer.ts'
import { exchange, neverConnected } from './exchange.ts'
import { readBody } from './read.ts'

export interface JsonRequest {
  readonly method: Dispatcher.HttpMethod
  /** `https://host:port`. */
  readonly origin: string
  readonly path: string
  readonly headers?: Readonly<Record<string, string>>
  /** Sent as JSON, as `application/json` unless `headers` says otherwise. */
  readonly body?: unknown
  readonly timeoutMs: number
  readonly signal?: AbortSignal | undefined
}

export interface JsonAnswer extends Pick<Reply, 'status' | 'headers'> {
  /** Undefined when the answer has no body, none that is JSON, or one that is too long. */
  readonly body: unknown
}

/** A page of a list is the longest answer. */
const maxAnswerBytes = 8 * 1024 * 1024

/** There is no whole answer. */
export class NoAnswer extends Error {
  /** False: there was no connection, so nothing was asked. Else the server may have done it. */
  readonly asked: boolean
  constructor(message: string, asked: boolean, cause: unknown) {
    super(message, { cause })
    this.name = 'NoAnswer'
    this.asked = asked
  }
}

/**
 * Asks the JSON API of another service. Resolves with whatever it answers; rejects with `NoAnswer`, or with the reason of
 * the caller's signal.
 */
export async function askJson(dispatcher: Dispatcher, request: JsonRequest): Promise<JsonAnswer> {
  const { method, origin, path, headers, body, timeoutMs, signal } = request
  const lost = (cause: Error): Error => {
    const { code } = cause as { code?: unknown }
    // The asking side is over; nothing is lost.
    if (code === 'UND_ERR_DESTROYED' || code === 'UND_ERR_CLOSED') return cause
    return new NoAnswer(`${method} ${origin}: ${cause.message}`, !neverConnected(cause), cause)
  }
  const sent = {
    method,
    origin,
    path,
    headers: { accept: 'application/json', ...(body === undefined ? {} : json), ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  }
  const reply = await exchange(dispatcher, sent, { signal, lost, timeoutMs, whole: true })
  return { status: reply.status, headers: reply.headers, body: parse(await readBody(reply.body, maxAnswerBytes)) }
}

const json = { 'content-type': 'application/json' }

function parse(bytes: Buffer | undefined): unknown {
  try {
    return JSON.parse(bytes?.toString('utf8') ?? '') as unknown
  } catch {
    return undefined
  }
}
