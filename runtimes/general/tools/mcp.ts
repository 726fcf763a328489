import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport, StreamableHTTPError } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { ErrorCode, McpError, ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js'
import { createParser } from 'eventsource-parser'
import type { ModelFetch } from '#contracts/model'

/** The run's own deadline ends a call; the library's default of 60 s would end long tools early. */
export const noTimeout = 2_147_483_647

export interface McpAddress {
  readonly url: string
  readonly headers?: Readonly<Record<string, string>>
  /** True for our own endpoint: it is stateless, announces nothing, and bounds its answers. */
  readonly own?: boolean
}

/** An MCP session that is open. */
export interface McpSession {
  readonly client: Client
  /** The server gave out an id for it, and may forget it. */
  readonly remembered: boolean
  close(): Promise<void>
}

/** How long ending a session may take; the run is over by then. */
const farewellMs = 2_000

/** Opens a session. Rejects with whatever the library says. */
export async function openMcp(
  fetch: ModelFetch,
  address: McpAddress,
  signal: AbortSignal,
  onListChanged: () => void = () => {},
): Promise<McpSession> {
  // A validator that does nothing: output schemas are not checked, and making the usual one costs a millisecond per run.
  const client = new Client(
    { name: 'agent-orc', version: '1' },
    { jsonSchemaValidator: { getValidator: () => refuse } },
  )
  const transport = new StreamableHTTPClientTransport(new URL(address.url), {
    fetch: address.own ? withoutListening(fetch) : createMcpFetch(fetch, watching(client)),
    ...(address.headers ? { requestInit: { headers: { ...address.headers } } } : {}),
  })
  if (!address.own) client.setNotificationHandler(ToolListChangedNotificationSchema, onListChanged)
  await client.connect(transport, { signal, timeout: noTimeout })
  return {
    client,
    remembered: transport.sessionId !== undefined,
    async close() {
      if (transport.sessionId !== undefined) {
        const late = setTimeout(() => void client.close(), farewellMs)
        await transport.terminateSession().catch(() => {})
        clearTimeout(late)
      }
      await client.close()
    },
  }
}

const refuse = (): never => {
  throw new Error('not used')
}

/** The stream for unasked messages of the server has no use here, and opening it costs a request per run. */
const withoutListening =
  (fetch: ModelFetch): ModelFetch =>
  async (input, init) =>
    init?.method === 'GET' ? new Response(null, { status: 405 }) : fetch(input, init)

/** Ends requests whose answer was cut: the library would wait for the run's deadline. */
function watching(client: Client) {
  const resuming = new Set<string | number>()
  const end = (id: string | number): void =>
    client.transport?.onmessage?.({
      jsonrpc: '2.0',
      id,
      error: { code: ErrorCode.ConnectionClosed, message: 'the answer was cut' },
    })
  client.onerror = ({ message }) => {
    if (!message.startsWith('Maximum reconnection attempts')) return
    for (const id of resuming) end(id)
    resuming.clear()
  }
  return {
    listens: () => client.getServerCapabilities()?.tools?.listChanged === true,
    onCut(id: string | number, resumes: boolean) {
      if (resumes) resuming.add(id)
      else end(id)
    },
  }
}

/** One answer of a server; a catalogue or a result that is larger is not read to its end. */
const maxAnswerBytes = 16 * 1024 * 1024

interface McpFetchOptions {
  /** Whether the stream for unasked messages of the server is worth a connection. */
  listens(): boolean
  /** The answer of this request ended without a word about it. `resumes`: the library asks for the rest. */
  onCut(id: string | number, resumes: boolean): void
}

/**
 * `fetch` for the library's MCP transport. An event stream that ends before the answer was in it leaves its request waiting
 * for ever there: it is watched here. Answers are bounded.
 */
function createMcpFetch(fetch: ModelFetch, { listens, onCut }: McpFetchOptions): ModelFetch {
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

/** How a request to an MCP server failed. */
type Failure =
  /** The server has forgotten the MCP session; it did not look at the request. */
  | 'expired'
  /** No connection was made. */
  | 'unreached'
  /** The connection ended behind the request: whether it was carried out is not known. */
  | 'cut'
  /** The request's arguments are not what the tool takes. */
  | 'arguments'
  | 'refused'

/** Codes of sockets that never carried a byte. */
const beforeConnection: ReadonlySet<unknown> = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
])
const behindConnection: ReadonlySet<unknown> = new Set([
  'ECONNRESET',
  'EPIPE',
  'UND_ERR_SOCKET',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
])

/** `inSession`: the server had given out a session id. */
export function failureOf(error: unknown, inSession: boolean): Failure {
  if (error instanceof StreamableHTTPError) {
    // 404 is what the protocol says; servers that keep sessions in a map answer 400 and speak of the session.
    const forgotten = error.code === 404 || (error.code === 400 && /session|not initialized/i.test(error.message))
    return inSession && forgotten ? 'expired' : 'refused'
  }
  if (error instanceof McpError) {
    if (error.code === ErrorCode.ConnectionClosed) return 'cut'
    return error.code === ErrorCode.InvalidParams ? 'arguments' : 'refused'
  }
  const codes = codesOf(error)
  if (codes.some((code) => beforeConnection.has(code))) return 'unreached'
  return codes.some((code) => behindConnection.has(code)) ? 'cut' : 'refused'
}

/** Says why a server's tools are missing. It never quotes the server, which may repeat what was sent to it. */
export function whyUnavailable(error: unknown): string {
  if (isTimeout(error)) return 'The server did not answer in time.'
  if (error instanceof StreamableHTTPError && error.code !== undefined && error.code >= 300) {
    return `The server answered ${error.code}.`
  }
  return failureOf(error, false) === 'unreached'
    ? 'The server cannot be reached.'
    : 'The server does not answer as an MCP server.'
}

/** The library passes the reason of an aborted signal on, in its own error or as it is. */
export const isTimeout = (error: unknown): boolean =>
  error instanceof Error && (error.name === 'TimeoutError' || /TimeoutError|due to timeout/.test(error.message))

function codesOf(error: unknown): unknown[] {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: { code?: unknown } }
  return [code, cause?.code]
}
