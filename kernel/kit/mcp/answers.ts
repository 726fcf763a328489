import { setTimeout as sleep } from 'node:timers/promises'
import { SdkError, SdkErrorCode } from '@modelcontextprotocol/client'
import { createParser } from 'eventsource-parser'
import type { ModelFetch } from '#contracts/model'
import { Gathered } from '../gathered.ts'
import { partsOf } from './bounds.ts'
import { tooLarge } from './failures.ts'

interface McpFetchOptions {
  /** Whether the server's stream for unsolicited messages is worth a connection. */
  listens(): boolean
  /** Called when the answer to this request ended without a reply. `resumes`: the library requests the rest. `large`: the answer was too large. */
  onCut(id: string | number, resumes: boolean, large: boolean): void
  /** Called when the server has sent so many unsolicited messages that they are ignored. */
  onFlood(): void
  /** A larger answer is not read to its end. */
  readonly maxAnswerBytes: number
  /** The same limit for a request of this method. It is lower for what is kept: a list, and how the server introduces itself. */
  mostOf(method: string | undefined): number
  /** False when there is no room for so many bytes more. */
  take(bytes: number): boolean
  /** The older transport: answers arrive through the stream for unsolicited messages. */
  readonly answersThere?: boolean
}

type Take = McpFetchOptions['take']

/** The most messages in the stream of one answer. Each costs more than its bytes. */
const mostMessages = 5_000
/** The most values and names of all messages in the stream of one answer. */
const mostParts = 200_000
/** What a server may send unsolicited within a period. A notice of a changed list has a hundred bytes. */
const unaskedMost = { bytes: 256 * 1024, messages: mostMessages, parts: mostParts }
const unaskedMs = 60_000
/** A chunk costs at least as much as so many bytes, in memory and in work, however short it is. */
const leastOfChunk = 256
/** A longer refusal is not read, only its status. */
const refusalBytes = 64 * 1024
/** Milliseconds. Servers choose how soon they are contacted again, and may choose zero. */
const shortestPauseMs = 250

/**
 * `fetch` for the library's MCP transport. The library waits for ever for an answer that never comes, so answers are checked here: an event stream
 * that ends before the answer, and an answer to another request. Everything that a server sends is limited.
 */
export function createMcpFetch(fetch: ModelFetch, options: McpFetchOptions): ModelFetch {
  const { listens, onCut, mostOf, take, answersThere = false } = options
  const unasked = createUnasked(options)
  let listenedAt = -Infinity
  return async (input, init) => {
    const { method = 'GET', headers, body, signal } = init ?? {}
    if (method === 'GET') {
      const resumes = new Headers(headers).has('last-event-id')
      if (unasked.over || (!resumes && !listens())) return new Response(null, { status: 405 })
      const waitMs = listenedAt + shortestPauseMs - performance.now()
      if (waitMs > 0) await sleep(waitMs, undefined, { ref: false, ...(signal ? { signal } : {}) })
      listenedAt = performance.now()
      const response = await fetch(input, init)
      return response.body ? withBody(response, unasked.read(response.body)) : response
    }
    const { id, method: asked } = method === 'POST' ? requestOf(body) : {}
    const most = mostOf(asked)
    if (id !== undefined && answersThere) unasked.expect(most)
    const response = await fetch(input, init)
    if (!response.body) return response
    if (!response.ok) return withBody(response, [await refusalOf(response.body, take)])
    if (id === undefined || answersThere) return withBody(response, read(response.body, most, take))
    if (isOf(response, 'text/event-stream')) {
      const watch = watchFor(id)
      const onEnd = (large: boolean): void => {
        if (watch.answered) return
        // What would go on in the stream that was given up is not waited for.
        const resumes = watch.resumable && !unasked.over
        if (resumes) unasked.expect(most)
        onCut(id, resumes, large)
      }
      return withBody(response, read(response.body, most, take, watch, onEnd))
    }
    if (isOf(response, 'application/json')) return jsonAnswer(response, id, most, take)
    // The library would treat 202 as an accepted notification.
    if (response.status === 202) throw noAnswer()
    return withBody(response, read(response.body, most, take))
  }
}

/** Like a broken connection: whether the request was carried out is unknown. */
const noAnswer = (): Error => new SdkError(SdkErrorCode.ConnectionClosed, 'the request has no answer')

const isOf = ({ headers }: Response, type: string): boolean =>
  headers.get('content-type')?.toLowerCase().startsWith(type) === true

type Chunks = AsyncIterable<Uint8Array> | Iterable<Uint8Array>
const withBody = ({ status, statusText, headers }: Response, body: Chunks): Response =>
  new Response(ReadableStream.from(body) as ReadableStream<Uint8Array>, { status, statusText, headers })

/** The answer as JSON, parsed only here. Rejects when there is none to the request. Of a batch the library gets nothing else. */
async function jsonAnswer(
  { body, status, headers }: Response,
  id: string | number,
  limit: number,
  take: Take,
): Promise<Response> {
  const message = JSON.parse((await wholeOf(body!, limit, take)).toString('utf8')) as unknown
  const answer = [message].flat().find((one) => isAnswer(one, id))
  if (answer === undefined) throw noAnswer()
  return Object.assign(new Response(null, { status, headers }), { json: async () => answer })
}

/** The library parses it as well. */
const refusalOf = (body: ReadableStream<Uint8Array>, take: Take): Promise<Buffer> =>
  wholeOf(body, refusalBytes, take).catch(() => Buffer.alloc(0))

async function wholeOf(body: ReadableStream<Uint8Array>, limit: number, take: Take): Promise<Buffer> {
  const whole = new Gathered()
  for await (const chunk of read(body, limit, take)) whole.add(chunk)
  partsOf(whole.bytes)
  return whole.bytes
}

/** Infinity for a message that has too many values, or nests too deep. */
function partsIn(data: string): number {
  try {
    return partsOf(Buffer.from(data))
  } catch {
    return Infinity
  }
}

/** An answer to the server's own request has an id too, but no method. */
function requestOf(body: unknown): { id?: string | number; method?: string } {
  const message = JSON.parse(String(body)) as { id?: string | number; method?: string }
  return message.method === undefined ? {} : message
}

interface Watch {
  readonly answered: boolean
  /** True when the server named an event after which it can continue. */
  readonly resumable: boolean
  feed(bytes: Uint8Array): void
}

function watchFor(id: string | number): Watch {
  const decoder = new TextDecoder()
  const seen = { answered: false, resumable: false }
  let messages = 0
  let parts = 0
  const parser = createParser({
    onEvent(event) {
      parts += partsOf(Buffer.from(event.data))
      if (++messages > mostMessages || parts > mostParts) throw new Error(tooLarge)
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

/** Some servers write the id as text, and the library accepts that. */
function isAnswer(message: unknown, id: string | number): boolean {
  if (typeof message !== 'object' || message === null || !('id' in message)) return false
  return String(message.id) === String(id) && ('result' in message || 'error' in message)
}

const costOf = ({ length }: Uint8Array): number => Math.max(length, leastOfChunk)

async function* read(
  body: ReadableStream<Uint8Array>,
  limit: number,
  take: Take,
  watch?: Watch,
  onEnd: (large: boolean) => void = () => {},
): AsyncGenerator<Uint8Array> {
  let bytes = 0
  let large = false
  try {
    for await (const chunk of body) {
      const cost = costOf(chunk)
      bytes += cost
      if (bytes > limit || !take(cost)) throw new Error(tooLarge)
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
 * The stream for unsolicited messages lives as long as the session, so it is not one answer. Each of its events is limited, because the library
 * keeps an event until it is complete. The total per period is limited, because every event costs work.
 */
function createUnasked({
  maxAnswerBytes,
  onFlood,
  take: hasRoom,
}: Pick<McpFetchOptions, 'maxAnswerBytes' | 'onFlood' | 'take'>) {
  const left = { ...unaskedMost }
  let since = performance.now()
  let over = false
  const take = (what: keyof typeof left, count: number): void => {
    const now = performance.now()
    if (now - since > unaskedMs) {
      since = now
      for (const one of ['bytes', 'messages', 'parts'] as const) left[one] = Math.max(left[one], unaskedMost[one])
    }
    left[what] -= count
    if (left[what] < 0) over = true
  }
  return {
    get over() {
      return over
    },
    /** Raises the limits, because a requested answer will arrive through this stream. */
    expect(bytes: number): void {
      left.bytes += bytes
      left.messages += mostMessages
      left.parts += mostParts
    },
    async *read(body: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
      const decoder = new TextDecoder()
      const parser = createParser({
        maxBufferSize: maxAnswerBytes,
        onEvent({ data }) {
          take('messages', 1)
          take('parts', partsIn(data))
        },
        onError({ type }) {
          if (type === 'max-buffer-size-exceeded') over = true
        },
      })
      for await (const chunk of body) {
        take('bytes', costOf(chunk))
        over ||= !hasRoom(costOf(chunk))
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
