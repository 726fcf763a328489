import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { SSEClientTransport, SseError } from '@modelcontextprotocol/sdk/client/sse.js'
import { StreamableHTTPClientTransport, StreamableHTTPError } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js'
import { ErrorCode, McpError, ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js'
import { createParser } from 'eventsource-parser'
import type { ModelFetch } from '#contracts/model'
import { ForbiddenAddressError } from '../outbound.ts'

/** The run's own deadline ends a call; the library's default of 60 s would end long tools early. */
export const noTimeout = 2_147_483_647

export interface McpAddress {
  readonly url: string
  /** The older transport, of two connections; streamable HTTP unless given. */
  readonly transport?: 'sse' | undefined
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** True for our own endpoint: it is stateless, announces nothing, and bounds its answers. */
  readonly own?: boolean
  /** The largest answer that is read to its end; 16 MiB unless given. */
  readonly maxAnswerBytes?: number
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
  if (!address.own) client.setNotificationHandler(ToolListChangedNotificationSchema, onListChanged)
  const transport = transportTo(address, fetch, client)
  // The library has the signal end requests, and not the opening of a stream.
  const leave = (): void => void client.close()
  signal.addEventListener('abort', leave, { once: true })
  try {
    await client.connect(transport as Transport, { signal, timeout: noTimeout })
  } catch (error) {
    void client.close().catch(() => {})
    throw signal.aborted ? signal.reason : error
  } finally {
    signal.removeEventListener('abort', leave)
  }
  return {
    client,
    remembered: 'sessionId' in transport && transport.sessionId !== undefined,
    async close() {
      if ('terminateSession' in transport && transport.sessionId !== undefined) {
        const late = setTimeout(() => void client.close(), farewellMs)
        await transport.terminateSession().catch(() => {})
        clearTimeout(late)
      }
      await client.close()
    },
  }
}

function transportTo(address: McpAddress, fetch: ModelFetch, client: Client) {
  const url = new URL(address.url)
  const { maxAnswerBytes = 16 * 1024 * 1024 } = address
  const init = address.headers ? { requestInit: { headers: { ...address.headers } } } : {}
  if (address.own) return new StreamableHTTPClientTransport(url, { fetch: withoutListening(fetch), ...init })
  const watch = { ...watching(client), maxAnswerBytes }
  if (address.transport === undefined) {
    return new StreamableHTTPClientTransport(url, { fetch: createMcpFetch(fetch, watch), ...init })
  }
  // Its answers come through the one stream that it listens to.
  return new SSEClientTransport(url, { fetch: createMcpFetch(fetch, { ...watch, listens: () => true }), ...init })
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
  const end = (id: string | number, message = 'the answer was cut'): void =>
    client.transport?.onmessage?.({ jsonrpc: '2.0', id, error: { code: ErrorCode.ConnectionClosed, message } })
  client.onerror = ({ message }) => {
    if (!message.startsWith('Maximum reconnection attempts')) return
    for (const id of resuming) end(id)
    resuming.clear()
  }
  return {
    listens: () => client.getServerCapabilities()?.tools?.listChanged === true,
    onCut(id: string | number, resumes: boolean, large: boolean) {
      // It would be as large the next time.
      if (large) end(id, tooLarge)
      else if (resumes) resuming.add(id)
      else end(id)
    },
  }
}

interface McpFetchOptions {
  /** Whether the stream for unasked messages of the server is worth a connection. */
  listens(): boolean
  /** The answer of this request ended without a word about it. `resumes`: the library asks for the rest. `large`: it was too large. */
  onCut(id: string | number, resumes: boolean, large: boolean): void
  /** An answer that is larger is not read to its end. */
  readonly maxAnswerBytes: number
}

/**
 * `fetch` for the library's MCP transport. An event stream that ends before the answer was in it leaves its request waiting
 * for ever there: it is watched here. Answers are bounded.
 */
function createMcpFetch(fetch: ModelFetch, { listens, onCut, maxAnswerBytes }: McpFetchOptions): ModelFetch {
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
      read(response.body, method === 'GET' ? Infinity : maxAnswerBytes, watch, (large) => {
        if (watch && id !== undefined && !watch.answered) onCut(id, watch.resumable, large)
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
  onEnd: (large: boolean) => void,
): AsyncGenerator<Uint8Array> {
  let bytes = 0
  try {
    for await (const chunk of body) {
      bytes += chunk.length
      if (bytes > limit) throw new Error(tooLarge)
      watch?.feed(chunk)
      yield chunk
    }
  } finally {
    onEnd(bytes > limit)
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

/** Why a server cannot be used. */
export type Reason =
  | { readonly kind: 'timeout' | 'address' | 'unreached' | 'certificate' | 'too_large' | 'protocol' }
  | { readonly kind: 'status'; readonly status: number }

export function reasonOf(error: unknown): Reason {
  if (isTimeout(error)) return { kind: 'timeout' }
  const status = error instanceof StreamableHTTPError || error instanceof SseError ? (error.code ?? 0) : 0
  if (status >= 300) return { kind: 'status', status }
  if (causesOf(error).some((one) => one instanceof ForbiddenAddressError)) return { kind: 'address' }
  if (causesOf(error).some(({ code }) => /CERT|SELF_SIGNED|^ERR_TLS|UNABLE_TO_/.test(String(code)))) {
    return { kind: 'certificate' }
  }
  if (failureOf(error, false) === 'unreached') return { kind: 'unreached' }
  return { kind: causesOf(error).some(({ message }) => message.endsWith(tooLarge)) ? 'too_large' : 'protocol' }
}

/** Says why a server's tools are missing. It never quotes the server, which may repeat what was sent to it. */
export function whyUnavailable(error: unknown): string {
  const reason = reasonOf(error)
  return reason.kind === 'status' ? `The server answered ${reason.status}.` : sentences[reason.kind]
}

const sentences: Readonly<Record<Exclude<Reason['kind'], 'status'>, string>> = {
  timeout: 'The server did not answer in time.',
  address: 'The server has an address that may not be asked.',
  unreached: 'The server cannot be reached.',
  certificate: 'The certificate of the server is not valid.',
  too_large: 'What the server answers is too large.',
  protocol: 'The server does not answer as an MCP server.',
}
const tooLarge = 'the answer is too large'

function causesOf(error: unknown): (Error & { readonly code?: unknown })[] {
  return error instanceof Error ? [error, ...causesOf(error.cause)] : []
}

/** The library passes the reason of an aborted signal on, in its own error or as it is. */
export const isTimeout = (error: unknown): boolean =>
  error instanceof Error && (error.name === 'TimeoutError' || /TimeoutError|due to timeout/.test(error.message))

function codesOf(error: unknown): unknown[] {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: { code?: unknown } }
  return [code, cause?.code]
}
