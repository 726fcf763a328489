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
  /** With its query. */
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly signal: AbortSignal
  /** The one model that the body may name; its form is JSON then, and not compressed. */
  readonly model?: string | undefined
  /** The only tools of an MCP server that the body may call. */
  readonly tools?: McpServer['tools'] | undefined
  /** What measures it. */
  readonly call?: ModelCall | undefined
  /** The error when it cannot be reached, or its answer is cut before it begins. */
  readonly unreachable: (options: { readonly cause: unknown }) => AppError
  /** The error when it refuses the runner's credentials. Its own answer about them is not shown to the worker. */
  readonly refused: () => AppError
}

/** Sends a worker's request on and its answer back, both as streams that wait for their readers. */
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

/** Headers of an answer that reach the worker. Cookies and the name of the account are not the worker's. */
const answerHeaders = [
  'allow',
  'content-encoding',
  'mcp-session-id',
  'request-id',
  'retry-after',
  'retry-after-ms',
] as const

/** The headers of these names that are set, once each. */
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
