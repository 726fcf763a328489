import type { Dispatcher } from 'undici'
import { Answer, type ExchangeOptions, readBody, type Reply } from './answer.ts'
import { retry } from './retry.ts'

/** With more unread bytes of one answer, its socket is paused. */
const highWater = 256 * 1024

/** True when no connection was made, or the peer began nothing. A request that is lost on an open connection may have arrived. */
export const neverConnected = (cause: unknown): boolean => unasked.has(String((cause as { code?: unknown }).code))

const unasked = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
  'LINK_REFUSED',
])

/**
 * One HTTP exchange over undici's `dispatch`, which is several times cheaper than fetch and has back-pressure down to the socket. Rejects with
 * `lost(...)` when there is no answer, and with the signal's reason when aborted; the body does the same.
 */
export function exchange(
  dispatcher: Dispatcher,
  request: Dispatcher.DispatchOptions,
  options: ExchangeOptions,
): Promise<Reply> {
  let controller: Dispatcher.DispatchController | undefined
  const answer = new Answer(
    {
      resume() {
        if (controller?.paused) controller.resume()
      },
      // There is no controller until the connection is open. The caller is rejected now, and the request is aborted when it starts.
      abort: (error) => controller?.abort(error),
    },
    options,
  )
  if (answer.over) return answer.head
  dispatcher.dispatch(request, {
    onRequestStart(started) {
      controller = started
      if (answer.over) started.abort(new Error('aborted'))
    },
    onResponseStart(_controller, status, headers) {
      // An informational answer comes before the real one.
      if (status >= 200) answer.begin(status, headers)
    },
    onResponseData(responding, chunk) {
      if (answer.push(chunk) > highWater) responding.pause()
    },
    onResponseEnd: () => answer.end(),
    onResponseError: (_controller, cause) => answer.fail(cause),
  })
  return answer.head
}

export interface JsonRequest {
  readonly method: Dispatcher.HttpMethod
  /** `https://host:port`. */
  readonly origin: string
  readonly path: string
  readonly headers?: Readonly<Record<string, string>>
  /** Sent as JSON, with the type `application/json` unless `headers` says otherwise. */
  readonly body?: unknown
  readonly timeoutMs: number
  readonly signal?: AbortSignal | undefined
}

export interface JsonAnswer extends Pick<Reply, 'status' | 'headers'> {
  /** Undefined when the answer has no body, none that is JSON, or one that is too long. */
  readonly body: unknown
}

/** The most bytes of an answer. A page of a list comes close to it. */
const maxAnswerBytes = 8 * 1024 * 1024

/** No complete answer arrived. */
export class NoAnswer extends Error {
  /** False: there was no connection, so the server got no request. True: the server may have carried it out. */
  readonly asked: boolean
  constructor(message: string, asked: boolean, cause: unknown) {
    super(message, { cause })
    this.name = 'NoAnswer'
    this.asked = asked
  }
}

/** Calls the JSON API of another service. Resolves to any answer; rejects with `NoAnswer`, or with the reason of the caller's signal. */
export async function askJson(dispatcher: Dispatcher, request: JsonRequest): Promise<JsonAnswer> {
  const { method, origin, path, headers, body, timeoutMs, signal } = request
  const lost = (cause: Error): Error => {
    const { code } = cause as { code?: unknown }
    // Our own dispatcher was closed, so the request was never sent.
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

interface Patience {
  /** The request may be sent twice, so it is retried after a lost answer or a failure of the server. */
  readonly repeatable: boolean
  /** Milliseconds after the first attempt during which another attempt may begin. */
  readonly withinMs: number
  readonly signal?: AbortSignal | undefined
}

const waits = { firstMs: 200, longestMs: 5_000, spread: true }
/** Statuses of temporary failures. 500 is included, because API servers answer it while they are being replaced. */
const passing = new Set([500, 502, 503, 504])

/**
 * Retries what may succeed later: requests that were refused for their rate, requests that never arrived, and, if repeatable, failed requests. The
 * waits grow and are spread; `Retry-After` is respected. Gives up with the last outcome.
 */
export async function askPatiently(ask: () => Promise<JsonAnswer>, patience: Patience): Promise<JsonAnswer> {
  const { repeatable, withinMs, signal } = patience
  const attempt = async (): Promise<JsonAnswer> => {
    const answer = await ask()
    if (answer.status === 429 || (repeatable && passing.has(answer.status))) throw new Refusal(answer)
    return answer
  }
  const mayPass = (error: unknown): boolean | number =>
    error instanceof Refusal ? retryAfterMs(error.answer) : error instanceof NoAnswer && (repeatable || !error.asked)
  try {
    return await retry(attempt, { ...waits, withinMs, signal, mayPass })
  } catch (error) {
    if (error instanceof Refusal) return error.answer
    throw error
  }
}

/** An answer that may be different later. */
class Refusal extends Error {
  readonly answer: JsonAnswer
  constructor(answer: JsonAnswer) {
    super(`the server answered ${answer.status}`)
    this.answer = answer
  }
}

function retryAfterMs({ headers }: JsonAnswer): number {
  const value = headers['retry-after']
  return typeof value === 'string' && /^\d{1,6}$/.test(value) ? Number(value) * 1_000 : 0
}
