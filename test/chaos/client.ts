import { createParser } from 'eventsource-parser'
import type { Seen } from './observed.ts'

/** A server pings every 15 s: a stream that is silent for longer is dead. */
const silentMs = 20_000

export interface Answer {
  readonly status: number
  readonly body: Readonly<Record<string, unknown>>
  readonly headers: Headers
}

/** Sends a request with a small answer. Rejects when the connection fails or no answer comes within `ms`. */
export async function ask(
  url: string,
  key: string,
  method: string,
  body: unknown,
  ms: number,
  idempotencyKey?: string,
): Promise<Answer> {
  const response = await fetch(url, { ...request(key, method, body, idempotencyKey), signal: AbortSignal.timeout(ms) })
  const text = await response.text()
  const isJson = response.headers.get('content-type')?.includes('json') ?? false
  return {
    status: response.status,
    headers: response.headers,
    body: isJson ? (JSON.parse(text) as Record<string, unknown>) : {},
  }
}

export interface Reading {
  readonly status: number
  readonly headers: Headers
  /** The JSON body of an answer that is no stream. */
  readonly body: Readonly<Record<string, unknown>>
  /** Events as they arrive. Ends with the connection, however that ended. */
  readonly events: AsyncGenerator<Seen>
  /** True when the server told the client to resume before the stream ended. */
  closing(): boolean
  leave(): void
}

/** Opens an event stream. */
export async function open(
  url: string,
  key: string,
  method: 'GET' | 'POST',
  body: unknown,
  after: number,
  ms: number,
  idempotencyKey?: string,
): Promise<Reading> {
  const abort = new AbortController()
  let timer = setTimeout(() => abort.abort(), ms)
  let closing = false
  try {
    const init = request(key, method, body, idempotencyKey)
    if (after > 0) init.headers['last-event-id'] = String(after)
    const response = await fetch(url, { ...init, signal: abort.signal })
    const isStream = response.headers.get('content-type')?.includes('event-stream') ?? false
    const text = isStream ? '' : await response.text()
    const heard = (): void => {
      clearTimeout(timer)
      timer = setTimeout(() => abort.abort(), silentMs)
    }
    async function* events(): AsyncGenerator<Seen> {
      const ready: Seen[] = []
      const parser = createParser({
        onEvent: (event) => void ready.push(seen(event)),
        onComment: (comment) => void (closing ||= comment.trim() === 'closing'),
      })
      const decoder = new TextDecoder()
      heard()
      try {
        for await (const bytes of response.body!) {
          heard()
          parser.feed(decoder.decode(bytes as Uint8Array, { stream: true }))
          yield* ready.splice(0)
        }
      } catch {
        // The connection broke, and the client resumes.
      } finally {
        clearTimeout(timer)
        abort.abort()
      }
    }
    return {
      status: response.status,
      headers: response.headers,
      body: text.startsWith('{') ? (JSON.parse(text) as Record<string, unknown>) : {},
      events: isStream ? events() : none(),
      closing: () => closing,
      leave: () => abort.abort(),
    }
  } finally {
    clearTimeout(timer)
  }
}

async function* none(): AsyncGenerator<Seen> {}

const request = (key: string, method: string, body: unknown, idempotencyKey: string | undefined) => ({
  method,
  headers: {
    authorization: `Bearer ${key}`,
    ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    ...(idempotencyKey === undefined ? {} : { 'idempotency-key': idempotencyKey }),
  } as Record<string, string>,
  ...(body === undefined ? {} : { body: JSON.stringify(body) }),
})

function seen({
  id,
  event = 'message',
  data,
}: {
  id?: string | undefined
  event?: string | undefined
  data: string
}): Seen {
  const { text, message } = JSON.parse(data) as { text?: string; message?: string }
  const said = text ?? (event === 'done' ? message : undefined)
  return { seq: Number(id ?? 0), type: event, ...(said === undefined ? {} : { text: said }) }
}
