import {
  type CallToolResult,
  Client,
  type PriorDiscovery,
  type Progress,
  ProtocolError,
  SSEClientTransport,
  SseError,
  StreamableHTTPClientTransport,
  type Tool,
  type Transport,
} from '@modelcontextprotocol/client'
import type { ModelFetch } from '#contracts/model'
import { createMcpFetch } from './answers.ts'
import { isCheckedLong } from './bounds.ts'
import type { McpEras } from './eras.ts'
import { connectionClosed, tooLarge } from './failures.ts'
import { answerTo, tool } from './rehearsal.ts'
import { listTools, noTimeout } from './tools.ts'

export interface McpAddress {
  readonly url: string
  /** `sse` is the older transport with two connections. Absent: streamable HTTP. */
  readonly transport?: 'sse' | undefined
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** True for our own endpoint, which is stateless, announces nothing, and limits its answers. */
  readonly own?: boolean
  /** The most bytes of an answer; 16 MiB by default. */
  readonly maxAnswerBytes?: number
  /** The most bytes of all pages of the list of tools together; as many as an answer has, by default. */
  readonly maxListBytes?: number
  /** Called with what arrives of answers, in bytes. False: there is no room for it, so the answer counts as too large. */
  readonly take?: ((bytes: number) => boolean) | undefined
  /** Remembers which revision the server speaks. Without it each session begins with a question. */
  readonly eras?: McpEras
}

/** A call of a tool, under the tool's name at its server. */
export interface ServerCall {
  readonly name: string
  readonly input: Readonly<Record<string, unknown>>
  readonly meta?: Readonly<Record<string, unknown>>
  readonly signal: AbortSignal
  /** The definition that the server listed. It may require some arguments in headers as well. */
  readonly definition?: Pick<Tool, 'name' | 'inputSchema'> | undefined
  readonly progress?: ((progress: Progress) => void) | undefined
}

/** An open MCP session. For a server of the revision of 2026-07-28, which has no sessions, it is what is known about the server. */
export interface McpSession {
  readonly client: Client
  /** Calls a tool. The form of the result is not checked. */
  call(call: ServerCall): Promise<CallToolResult>
  /** True when the server issued a session id, which it may forget. */
  readonly remembered: boolean
  readonly maxListBytes: number
  close(): Promise<void>
}

/** Milliseconds that ending a session may take. The run is over by then. */
const farewellMs = 2_000

/** Opens a session. Rejects with the library's error. */
export async function openMcp(
  fetch: ModelFetch,
  address: McpAddress,
  signal: AbortSignal,
  onListChanged: () => void = () => {},
): Promise<McpSession> {
  const { eras } = address
  const prior = eras?.of(address)
  try {
    return await open(fetch, address, { signal, onListChanged, prior })
  } catch (error) {
    // The server may speak another revision by now, so ask again.
    if (!prior || signal.aborted) throw error
    eras?.forget(address)
    return open(fetch, address, { signal, onListChanged, prior: undefined })
  }
}

/** Exchanges one message of each kind with a server of its own, so that no run has to wait for what the library does at the first one. */
export async function rehearseMcp(): Promise<void> {
  const { signal } = new AbortController()
  const fetch = (async (_url, init) => answerTo(String(init!.body))) satisfies ModelFetch
  for (const own of [true, false]) {
    const session = await openMcp(withoutListening(fetch), { url: 'http://none/', own }, signal)
    for (const definition of await listTools(session, signal)) {
      await session.call({ name: tool.name, input: {}, definition, signal })
    }
    await session.close()
  }
}

interface Opening {
  readonly signal: AbortSignal
  readonly onListChanged: () => void
  readonly prior: PriorDiscovery | undefined
}

async function open(
  fetch: ModelFetch,
  address: McpAddress,
  { signal, onListChanged, prior }: Opening,
): Promise<McpSession> {
  // Our own endpoint and the older transport begin with `initialize`. Other servers are asked which revision they speak.
  const mode = address.own || address.transport === 'sse' ? ('legacy' as const) : ('auto' as const)
  // A validator that does nothing: output schemas are not checked, and making the usual one costs a millisecond per run.
  const client = new Client(
    { name: 'agent-orc', version: '1' },
    { jsonSchemaValidator: { getValidator: () => accept }, versionNegotiation: { mode } },
  )
  if (!address.own) client.setNotificationHandler('notifications/tools/list_changed', onListChanged)
  const transport = transportTo(address, fetch, client)
  // In the library the signal ends requests, but not the opening of a stream.
  const left = Promise.withResolvers<never>()
  const leave = (): void => {
    void client.close().catch(() => {})
    void transport.close().catch(() => {})
    left.reject(signal.reason as Error)
  }
  signal.addEventListener('abort', leave, { once: true })
  try {
    const options = { signal, timeout: noTimeout, ...(prior ? { prior } : {}) }
    await Promise.race([client.connect(transport as Transport, options), left.promise])
  } catch (error) {
    void client.close().catch(() => {})
    throw signal.aborted ? signal.reason : error
  } finally {
    signal.removeEventListener('abort', leave)
  }
  if (mode === 'auto') address.eras?.note(address, client)
  boundChecks(transport)
  const maxListBytes = listBytesOf(address)
  return {
    client,
    maxListBytes,
    remembered: 'sessionId' in transport && transport.sessionId !== undefined,
    call: callerOf({ client, maxListBytes }),
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

/**
 * Calls tools. A tool's definition says which arguments its server needs in headers too. If the caller lacks the definition, the tools are listed,
 * within limits, once the server misses a header, and the latest list is kept. The library by itself would list and keep all pages.
 */
function callerOf(of: Pick<McpSession, 'client' | 'maxListBytes'>): McpSession['call'] {
  let listed: ServerCall['definition']
  return async ({ name, input, meta, signal, definition, progress }) => {
    const params = { name, arguments: { ...input }, ...(meta ? { _meta: { ...meta } } : {}) }
    const send = (inputSchema: Tool['inputSchema']): Promise<CallToolResult> =>
      of.client.callTool(params, {
        signal,
        timeout: noTimeout,
        ...(progress ? { onprogress: progress } : {}),
        // Leave out the output schema, so that it is not compiled.
        toolDefinition: { name, inputSchema },
      })
    const known = definition ?? (listed?.name === name ? listed : undefined)
    try {
      return await send(known?.inputSchema ?? { type: 'object' })
    } catch (error) {
      if (definition || !(error instanceof ProtocolError && error.code === headerMismatch)) throw error
      listed = (await listTools(of, signal)).find((tool) => tool.name === name)
      if (!listed) throw error
      return send(listed.inputSchema)
    }
  }
}
/** The server's code for an argument whose header is missing or differs from the body. */
const headerMismatch = -32_020

function transportTo(address: McpAddress, fetch: ModelFetch, client: Client) {
  const url = new URL(address.url)
  const { maxAnswerBytes = usualBytes } = address
  const init = address.headers ? { requestInit: { headers: { ...address.headers } } } : {}
  if (address.own) return new StreamableHTTPClientTransport(url, { fetch: withoutListening(fetch), ...init })
  const watch = {
    ...watching(client),
    maxAnswerBytes,
    take: address.take ?? (() => true),
    mostOf(method: string | undefined) {
      if (!client.getServerCapabilities()) return Math.min(maxAnswerBytes, greetingBytes)
      return method === 'tools/list' ? listBytesOf(address) : maxAnswerBytes
    },
  }
  if (address.transport === undefined) {
    return new StreamableHTTPClientTransport(url, { fetch: createMcpFetch(fetch, watch), ...init })
  }
  // Its answers arrive through the single stream that it listens to, and the server's session ends with that. The library would open another one.
  client.onerror = (error) => void (error instanceof SseError && client.close().catch(() => {}))
  const stream = { listens: () => true, answersThere: true }
  return new SSEClientTransport(url, { fetch: createMcpFetch(fetch, { ...watch, ...stream }), ...init })
}

const usualBytes = 16 * 1024 * 1024
const listBytesOf = ({ maxAnswerBytes = usualBytes, maxListBytes = maxAnswerBytes }: McpAddress): number => maxListBytes
/** Bytes of a server's introduction, including instructions and pictures. It stays in memory as long as the session. */
const greetingBytes = 256 * 1024
/** Drops answers that the library would check for too long. Such an answer counts as too large. */
function boundChecks(transport: Pick<Transport, 'onmessage'>): void {
  const { onmessage } = transport
  transport.onmessage = (message, ...extra) => {
    if (!('result' in message) || !isCheckedLong(message.result)) return onmessage?.(message, ...extra)
    onmessage?.({ jsonrpc: '2.0', id: message.id, error: { code: connectionClosed, message: tooLarge } }, ...extra)
  }
}

const accept = (data: unknown) => ({ valid: true as const, data: data as never, errorMessage: undefined })

/** The server's stream for unsolicited messages has no use here, and opening it costs a request per run. */
const withoutListening =
  (fetch: ModelFetch): ModelFetch =>
  async (input, init) =>
    init?.method === 'GET' ? new Response(null, { status: 405 }) : fetch(input, init)

/** Ends requests whose answer was cut off, because the library would wait for the run's deadline. */
function watching(client: Client) {
  const resuming = new Set<string | number>()
  const end = (id: string | number, message = 'the answer was cut'): void =>
    client.transport?.onmessage?.({ jsonrpc: '2.0', id, error: { code: connectionClosed, message } })
  const endResuming = (): void => {
    for (const id of resuming) end(id)
    resuming.clear()
  }
  client.onerror = ({ message }) => {
    if (message.startsWith('Maximum reconnection attempts')) endResuming()
  }
  return {
    onFlood: endResuming,
    listens: () => client.getServerCapabilities()?.tools?.listChanged === true,
    onCut(id: string | number, resumes: boolean, large: boolean) {
      // A retry would be just as large.
      if (large) end(id, tooLarge)
      else if (resumes) resuming.add(id)
      else end(id)
    },
  }
}
