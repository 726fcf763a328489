import { setTimeout as sleep } from 'node:timers/promises'
import { SdkError, SdkErrorCode } from '@modelcontextprotocol/client'
import { createParser } from 'eventsource-parser'
import type { ModelFetch } from '#contracts/model'
import { tooLarge } from './failures.ts'

interface McpFetchOptions {
  /** Whether the stream for unasked messages of the server is worth a connection. */
  listens(): boolean
  /** The answer of this request ended without a word about it. `resumes`: the library asks for the rest. `large`: it was too large. */
  onCut(id: string | number, resumes: boolean, large: boolean): void
  /** The server has sent so many unrequested messages that they are ignored. */
  onFlood(): void
  /** An answer that is larger is not read to its end. */
  readonly maxAnswerBytes: number
  /** The same for what a server is asked now; less while it says what it is, which is kept. */
  mostNow(): number
  /** The older transport: answers come through the stream for unasked messages as well. */
  readonly answersThere?: boolean
}

/** What a server may say unasked within so long. A word of a change of its list has a hundred bytes. */
const unaskedBytes = 256 * 1024
const unaskedMs = 60_000
/** Messages in the stream of one answer: each costs more than its bytes. */
const mostMessages = 5_000
/** Servers say how soon they are listened to again, and may say at once. */
const shortestPauseMs = 250

/**
 * `fetch` for the library's MCP transport. A request whose answer never comes waits there for ever, so answers are looked at here: an event
 * stream that ends before the answer was in it, and an answer to something else. All that a server says is bounded.
 */
export function createMcpFetch(fetch: ModelFetch, options: McpFetchOptions): ModelFetch {
  const { listens, onCut, mostNow, answersThere = false } = options
  const unasked = createUnasked(options)
  let listenedAt = -Infinity
  return async (input, init) => {
    const { method, headers, body, signal } = init ?? {}
    if (method === 'GET') {
      const resumes = new Headers(headers).has('last-event-id')
      if (unasked.over || (!resumes && !listens())) return new Response(null, { status: 405 })
      const waitMs = listenedAt + shortestPauseMs - performance.now()
      if (waitMs > 0) await sleep(waitMs, undefined, { ref: false, ...(signal ? { signal } : {}) })
      listenedAt = performance.now()
      const response = await fetch(input, init)
      return response.body ? withBody(response, unasked.read(response.body)) : response
    }
    const id = method === 'POST' ? requestIdOf(body) : undefined
    const most = mostNow()
    if (id !== undefined && answersThere) unasked.expect(most)
    const response = await fetch(input, init)
    if (!response.body) return response
    if (id === undefined || !response.ok || answersThere) return withBody(response, read(response.body, most))
    if (isOf(response, 'text/event-stream')) {
      const watch = watchFor(id)
      const onEnd = (large: boolean): void => {
        if (watch.answered) return
        if (watch.resumable) unasked.expect(most)
        onCut(id, watch.resumable, large)
      }
      return withBody(response, read(response.body, most, watch, onEnd))
    }
    if (isOf(response, 'application/json')) return jsonAnswer(response, id, most)
    // The library takes it for a notification that was heard.
    if (response.status === 202) throw noAnswer()
    return withBody(response, read(response.body, most))
  }
}

/** As a connection that was cut: whether the request was carried out is not known. */
const noAnswer = (): Error => new SdkError(SdkErrorCode.ConnectionClosed, 'the request has no answer')

const isOf = ({ headers }: Response, type: string): boolean => headers.get('content-type')?.startsWith(type) === true

const withBody = ({ status, statusText, headers }: Response, body: AsyncIterable<Uint8Array>): Response =>
  new Response(ReadableStream.from(body) as ReadableStream<Uint8Array>, { status, statusText, headers })

/** An answer as JSON, parsed here and nowhere else. Rejects when the request is not what it answers. */
async function jsonAnswer(response: Response, id: string | number, limit: number): Promise<Response> {
  const chunks: Uint8Array[] = []
  for await (const chunk of read(response.body!, limit)) chunks.push(chunk)
  const message = JSON.parse(Buffer.concat(chunks).toString('utf8')) as unknown
  if (![message].flat().some((one) => isAnswer(one, id))) throw noAnswer()
  const { status, headers } = response
  return Object.assign(new Response(null, { status, headers }), { json: async () => message })
}

function requestIdOf(body: unknown): string | number | undefined {
  const { id, method } = JSON.parse(String(body)) as { id?: string | number; method?: string }
  return method === undefined ? undefined : id
}

interface Watch {
  readonly answered: boolean
  /** The server named an event, behind which it goes on. */
  readonly resumable: boolean
  feed(bytes: Uint8Array): void
}

function watchFor(id: string | number): Watch {
  const decoder = new TextDecoder()
  const seen = { answered: false, resumable: false }
  let messages = 0
  const parser = createParser({
    onEvent(event) {
      if (++messages > mostMessages) throw new Error(tooLarge)
      if (event.id) seen.resumable = true
      if (event.data !== '') seen.answered ||= answers(event.data, id)
    },
  })
  return {
    get answered() {
      return seen.answered
    },
    get resumable() {
      return seen.resumable
    },
    feed: (bytes) => parser.feed(decoder.decode(bytes, { stream: true })),
  }
}

function answers(data: string, id: string | number): boolean {
  try {
    return isAnswer(JSON.parse(data), id)
  } catch {
    return false
  }
}

/** Servers write numbers as text now and then, and the library takes them. */
function isAnswer(message: unknown, id: string | number): boolean {
  if (typeof message !== 'object' || message === null || !('id' in message)) return false
  return String(message.id) === String(id) && ('result' in message || 'error' in message)
}

async function* read(
  body: ReadableStream<Uint8Array>,
  limit: number,
  watch?: Watch,
  onEnd: (large: boolean) => void = () => {},
): AsyncGenerator<Uint8Array> {
  let bytes = 0
  let large = false
  try {
    for await (const chunk of body) {
      bytes += chunk.length
      if (bytes > limit) throw new Error(tooLarge)
      watch?.feed(chunk)
      yield chunk
    }
  } catch (error) {
    large = (error as Error).message === tooLarge
    throw error
  } finally {
    onEnd(large)
  }
}

/**
 * The stream for unasked messages lives as long as the session: what comes through it is not one answer. Each of its events is bounded, since
 * the library keeps one until it has ended, and so is what comes in a while, since each is work for everybody.
 */
function createUnasked({ maxAnswerBytes, onFlood }: Pick<McpFetchOptions, 'maxAnswerBytes' | 'onFlood'>) {
  let left = unaskedBytes
  let since = performance.now()
  let over = false
  const take = (bytes: number): void => {
    const now = performance.now()
    if (now - since > unaskedMs) {
      since = now
      left = Math.max(left, unaskedBytes)
    }
    left -= bytes
    if (left < 0) over = true
  }
  return {
    get over() {
      return over
    },
    /** There is something to come that was asked for. */
    expect(bytes: number): void {
      left += bytes
    },
    async *read(body: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
      const decoder = new TextDecoder()
      const parser = createParser({
        maxBufferSize: maxAnswerBytes,
        onEvent() {},
        onError({ type }) {
          if (type === 'max-buffer-size-exceeded') over = true
        },
      })
      for await (const chunk of body) {
        take(chunk.length)
        if (!over) parser.feed(decoder.decode(chunk, { stream: true }))
        if (over) {
          onFlood()
          throw new Error(tooLarge)
        }
        yield chunk
      }
    },
  }
}
