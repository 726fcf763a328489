import type { IncomingHttpHeaders } from 'node:http'
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Dispatcher } from 'undici'
import { type AppError, isAppError, stream } from '#kernel'
import type { McpServer } from '#contracts/mcp-servers'
import { exchange } from '#kit'
import type { ModelCall } from './calls.ts'
import { onlyModel, onlyTools } from './body-guards.ts'
import { sandboxErrors } from '../errors.ts'

/** Room for a prompt with images and files; model servers accept no more either. */
const maxRequestBytes = 32 * 1024 * 1024

interface Destination {
  readonly dispatcher: Dispatcher
  readonly origin: string
  /** The path with its query. */
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly signal: AbortSignal
  /** The only model that the body may name. The body must then be uncompressed JSON. */
  readonly model?: string | undefined
  /** The only tools of an MCP server that the body may call. */
  readonly tools?: McpServer['tools'] | undefined
  /** Measures the call. */
  readonly call?: ModelCall | undefined
  /** The error when the server cannot be reached, or closes the connection before it answers. */
  readonly unreachable: (options: { readonly cause: unknown }) => AppError
  /** The error when the server refuses the runner's credentials. The server's own answer is hidden from the worker, because it may describe them. */
  readonly refused: () => AppError
}

/** Forwards a worker's request and the server's answer. Both are streams with back-pressure. */
export async function forward(request: FastifyRequest, reply: FastifyReply, to: Destination): Promise<void> {
  const left = new AbortController()
  const signal = AbortSignal.any([to.signal, left.signal])
  const body = bodyOf(request, to)
  const sent = body && to.tools && request.method === 'POST' ? await onlyTools(body, to.tools) : body
  const upstream = await exchange(
    to.dispatcher,
    {
      origin: to.origin,
      path: to.path,
      method: request.method as Dispatcher.HttpMethod,
      headers: { ...to.headers, ...(Buffer.isBuffer(sent) ? {} : lengthOf(request)) },
      body: sent,
    },
    { signal, lost: (cause) => (isAppError(cause) ? cause : to.unreachable({ cause })) },
  )
  const { status, body: answer } = upstream
  const { 'content-type': type } = upstream.headers
  const contentType = typeof type === 'string' ? type : 'application/octet-stream'
  to.call?.answered(status, contentType)
  if (status === 401) {
    left.abort()
    throw to.refused()
  }
  const headers = pick(upstream.headers, answerHeaders)
  return stream(request, reply, { status, contentType, headers }, () => to.call?.read(answer) ?? answer)
}

export function lengthOf({ headers }: FastifyRequest): Record<string, string> {
  const length = headers['content-length']
  if (length === undefined) return {}
  if (Number(length) > maxRequestBytes) throw sandboxErrors.bodyTooLarge()
  return { 'content-length': length }
}

export function bodyOf(
  { method, headers, raw }: FastifyRequest,
  { model, call }: Pick<Destination, 'model' | 'call'>,
): Readable | null {
  const empty = headers['transfer-encoding'] === undefined && (headers['content-length'] ?? '0') === '0'
  if (method === 'GET' || empty) {
    if (model === undefined) return null
    throw sandboxErrors.modelNotAllowed({ message: `Name the model of the run, ${model}.` })
  }
  const body = bounded(raw.iterator({ destroyOnReturn: false }))
  const sent = model === undefined ? body : onlyModel(body, model, (bytes) => call?.asked(bytes))
  return Readable.from(sent, { objectMode: false })
}

async function* bounded(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let size = 0
  for await (const chunk of body) {
    size += chunk.length
    if (size > maxRequestBytes) throw sandboxErrors.bodyTooLarge()
    yield chunk
  }
}

/** The headers of an answer that reach the worker. Cookies and account names belong to the runner, so they are left out. */
const answerHeaders = [
  'allow',
  'content-encoding',
  'mcp-session-id',
  'request-id',
  'retry-after',
  'retry-after-ms',
] as const

/** Picks the headers of these names that are set, each once. */
export function pick(
  headers: IncomingHttpHeaders | Readonly<Record<string, string | string[] | undefined>>,
  names: readonly string[],
): Record<string, string> {
  const picked: Record<string, string> = {}
  for (const name of names) {
    const value = headers[name]
    if (typeof value === 'string') picked[name] = value
  }
  return picked
}
