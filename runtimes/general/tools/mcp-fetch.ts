import { createParser } from 'eventsource-parser'
import type { ModelFetch } from '#contracts/model'

/** One answer of a server; a catalogue or a result that is larger is not read to its end. */
const maxAnswerBytes = 16 * 1024 * 1024

export interface McpFetchOptions {
  /** Whether the stream for unasked messages of the server is worth a connection. */
  listens(): boolean
  /** The answer of this request ended without a word about it. `resumes`: the library asks for the rest. */
  onCut(id: string | number, resumes: boolean): void
}

/**
 * `fetch` for the library's MCP transport. An event stream that ends before the answer was in it leaves its request waiting
 * for ever there: it is watched here. Answers are bounded.
 */
export function createMcpFetch(fetch: ModelFetch, { listens, onCut }: McpFetchOptions): ModelFetch {
  return async (input, init) => {
    const { method, headers, body } = init ?? {}
    const resumes = method === 'GET' && new Headers(headers).has('last-event-id')
    if (method === 'GET' && !resumes && !listens()) return new Response(null, { status: 405 })
    const response = await fetch(input, init)
    if (!response.body) return response
    const { status, statusText } = response
    const id = method === 'POST' && response.ok && isEventStream(response) ? requestIdOf(body) : undefined
    const watch = id === undefined ? undefined : watchFor(id)
    const stream = ReadableStream.from(
      // The stream for unasked messages lives as long as the run: what comes through it is not one answer.
      read(response.body, method === 'GET' ? Infinity : maxAnswerBytes, watch, () => {
        if (watch && id !== undefined && !watch.answered) onCut(id, watch.resumable)
      }),
    )
    return new Response(stream as ReadableStream<Uint8Array>, { status, statusText, headers: response.headers })
  }
}

const isEventStream = ({ headers }: Response): boolean =>
  headers.get('content-type')?.startsWith('text/event-stream') === true

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
  const parser = createParser({
    onEvent(event) {
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
    const message = JSON.parse(data) as Record<string, unknown>
    return message['id'] === id && ('result' in message || 'error' in message)
  } catch {
    return false
  }
}

async function* read(
  body: ReadableStream<Uint8Array>,
  limit: number,
  watch: Watch | undefined,
  onEnd: () => void,
): AsyncGenerator<Uint8Array> {
  let bytes = 0
  try {
    for await (const chunk of body) {
      bytes += chunk.length
      if (bytes > limit) throw new Error('the answer is too large')
      watch?.feed(chunk)
      yield chunk
    }
  } finally {
    onEnd()
  }
}
