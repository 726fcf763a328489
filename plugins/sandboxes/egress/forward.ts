import type { IncomingHttpHeaders } from 'node:http'
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Dispatcher } from 'undici'
import { type AppError, isAppError, stream } from '#kernel'
import { exchange } from '#kit'
import type { ModelCall } from './calls.ts'
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
  /** Looks into the body of a POST, and returns what is sent in its place. */
  readonly look?: ((body: AsyncIterable<Buffer>) => Promise<Buffer>) | undefined
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
  const ask = async () => {
    const sent = body && to.look && request.method === 'POST' ? await to.look(body) : body
    const { origin, path } = to
    const method = request.method as Dispatcher.HttpMethod
    const headers = { ...to.headers, ...(Buffer.isBuffer(sent) ? {} : lengthOf(request)) }
    const lost = (cause: unknown) => (isAppError(cause) ? cause : to.unreachable({ cause }))
    return exchange(to.dispatcher, { origin, path, method, headers, body: sent }, { signal, lost })
  }
  const upstream = await ask().catch((error: unknown) => {
    // What is left of the body is not read, and would hold back the next request of a connection that is kept.
    if (!request.raw.complete) void reply.header('connection', 'close')
    throw error
  })
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

const quote = 0x22
const backslash = 0x5c
const opens = new Set([0x7b, 0x5b])
const closes = new Set([0x7d, 0x5d])
const [brace, comma, colon] = [0x7b, 0x2c, 0x3a]
const blank = new Set([0x20, 0x09, 0x0a, 0x0d])
/** No key and no model name is longer, in bytes. Only the beginning of a longer string is kept. */
const maxKept = 1_024
/** Keys with further models in their value, which some servers use instead of `model`. */
const otherLists = new Set(['models', 'fallbacks'])
/**
 * With this key a server answers at once and works in the background, where the call cannot be measured. Only the values `false` and `null` are
 * allowed.
 */
const inBackground = 'background'
const isOff = new Set([0x66, 0x6e])

/**
 * Passes on the body of a model call that names exactly this model at its top level; `onWhole` gets its size in bytes before the last chunk is sent.
 * A body may have 32 MiB, so it is checked while it streams, and the last chunk waits for the end of the check: a refused call never reaches a model.
 * Refused are background calls, and bodies in which two JSON parsers could find two models: a second name, an escaped key, a key in another case.
 */
async function* onlyModel(
  body: AsyncIterable<Buffer>,
  model: string,
  onWhole: (bytes: number) => void,
): AsyncGenerator<Buffer> {
  const scan = new ModelScan(model)
  let held: Buffer | undefined
  let size = 0
  for await (const chunk of body) {
    scan.take(chunk)
    size += chunk.length
    if (held) yield held
    held = chunk
  }
  scan.end()
  onWhole(size)
  if (held) yield held
}

/** Scans the bytes of one JSON object. It does not check the syntax, because the model server does. */
class ModelScan {
  readonly #model: string
  #depth = 0
  #found = false
  /** The present key at the top level. The next value belongs to it. */
  #key: string | undefined
  #afterColon = false
  /** The present string. Its bytes are kept at the top level only. */
  #text: number[] | undefined
  #inString = false
  #escaped = false
  #over = false

  constructor(model: string) {
    this.#model = model
  }

  take(chunk: Buffer): void {
    for (const byte of chunk) {
      if (this.#inString) this.#inside(byte)
      else this.#between(byte)
    }
  }
  /** AppError 403 `model_not_allowed` unless exactly this model was named. */
  end(): void {
    if (!this.#over || this.#inString || !this.#found) throw refuse(this.#model)
  }

  #inside(byte: number): void {
    if (this.#escaped) this.#escaped = false
    else if (byte === backslash) this.#escaped = true
    else if (byte === quote) {
      this.#inString = false
      return this.#ended()
    }
    if (this.#text && this.#text.length < maxKept) this.#text.push(byte)
  }
  #ended(): void {
    if (!this.#text) return
    const text = Buffer.from(this.#text).toString('utf8')
    this.#text = undefined
    if (!this.#afterColon) this.#named(text)
    else if (this.#key === 'model') {
      if (text !== this.#model) throw refuse(this.#model)
      this.#found = true
      this.#key = undefined
    }
  }
  /** Checks a key of the top level. */
  #named(key: string): void {
    const plain = key.toLowerCase()
    const doubtful =
      key.includes('\\') || otherLists.has(plain) || (plain === 'model' && (key !== plain || this.#found))
    if (doubtful) throw refuse(this.#model)
    if (plain === inBackground && key !== plain) throw sandboxErrors.modelCallInBackground()
    this.#key = key
  }
  /** The first byte of the value tells `false` and `null` from anything else. */
  #background(byte: number): void {
    if (!isOff.has(byte)) throw sandboxErrors.modelCallInBackground()
    this.#key = undefined
  }
  #between(byte: number): void {
    if (blank.has(byte)) return
    // The body must be a single object in UTF-8.
    if (byte === 0 || this.#over || (this.#depth === 0 && byte !== brace)) throw refuse(this.#model)
    if (this.#afterColon && this.#key === inBackground) this.#background(byte)
    if (byte === quote) {
      this.#inString = true
      if (this.#depth === 1) this.#text = []
      return
    }
    if (this.#depth === 1) {
      if (byte === colon) return void (this.#afterColon = true)
      if (byte === comma) return void (this.#afterColon = false)
      // The value of `model` must be a string.
      if (this.#afterColon && this.#key === 'model') throw refuse(this.#model)
    }
    if (opens.has(byte)) this.#depth++
    else if (closes.has(byte) && --this.#depth === 0) this.#over = true
  }
}

const refuse = (model: string): Error =>
  sandboxErrors.modelNotAllowed({ message: `The running run may call only the model ${model}.` })
