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
  const sent = model === undefined ? body : onlyModel(body, model, (bytes, tokens) => call?.asked(bytes, tokens))
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
const [brace, bracket, comma, colon] = [0x7b, 0x5b, 0x2c, 0x3a]
const closes = new Set([0x7d, 0x5d])
const blank = new Set([0x20, 0x09, 0x0a, 0x0d])
/** No key and no model name is longer, in bytes. Only the beginning of a longer string is kept. */
const maxKept = 1_024
/** A key that reads alike everywhere. Others are compared as a lenient parser could read them. */
const plainKey = /^[\x20-\x5b\x5d-\x7e]*$/
/** Keys whose strings name a model, wherever a server looks for one: `model`, `fallbacks`, `analysis_models`. */
const naming = /(models?|fallbacks?)$/
/** Keys at the top level with further models in their value, which some servers use instead of `model`. */
const otherLists = new Set(['models', 'fallbacks'])
/** Tools and plugins that ask other models even if none is named. */
const askingOthers = /(^|:)(advisor|fusion|subagent)/
/** Values at the top level that are text, in which nothing names a model that is asked, except in tools: a conversation can define some. */
const texts = new Set(['messages', 'input', 'system', 'instructions', 'prompt', 'metadata'])
const toolKeys = new Set(['tool', 'tools', 'definition'])
/** Values in a conversation with keys of their own: the arguments of a tool call. */
const argumentKeys = new Set(['input', 'arguments'])
/** Parts of JSON Schemas, and examples, with keys of their own. */
const schemas = new Set([
  'input_schema',
  'schema',
  'properties',
  '$defs',
  'definitions',
  'dependentRequired',
  'examples',
  'input_examples',
])
/**
 * With this key a server answers at once and works in the background, where the call cannot be measured. Only the values `false` and `null` are
 * allowed.
 */
const inBackground = 'background'
const isOff = new Set([0x66, 0x6e])

/** Keys whose string stands for content that is not in the body, or whose bytes do not tell how much of it is read. */
const contents = new Set([
  'image_url',
  'video_url',
  'audio_url',
  'document_url',
  'file_url',
  'file_id',
  'file_data',
  'previous_response_id',
])
/** The same at the top level, where the value may also be an object with an id. A prompt is text unless it has an id. */
const contentsAtTop = new Set(['conversation', 'container', 'prompt'])
/** An image of a few hundred bytes may be large. Models count fewer tokens for nearly any image. */
const imageTokens = 10_000
const imageData = /^data:image\\?\//
const imageType = /^image\\?\//
const textType = /^text\\?\//

/**
 * Passes on the body of a model call that names this model and no other; before the last chunk is sent, `onWhole` gets its size in bytes, and the
 * tokens that it may stand for beyond them. A body may have 32 MiB, so it is checked while it streams, and the last chunk waits for the end of the
 * check: a refused call never reaches a model. Refused are background calls, and bodies in which two JSON parsers could find two models: a second
 * name, an escaped key, a key in another case.
 */
async function* onlyModel(
  body: AsyncIterable<Buffer>,
  model: string,
  onWhole: (bytes: number, tokens: number) => void,
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
  onWhole(size, scan.tokens)
  if (held) yield held
}

/** Scans the bytes of one JSON object. It does not check the syntax, because the model server does. */
class ModelScan {
  readonly #model: string
  /** The model as strings of the body are kept: a character for each byte. */
  readonly #bytes: string
  #depth = 0
  #found = false
  #over = false
  /** Tokens of images, files and conversations. Infinite when nothing in the body limits them. */
  #tokens = 0
  /** The key of the present value as it is written, and as a lenient parser could read it. Empty inside lists. */
  #raw = ''
  #key = ''
  #afterColon = false
  /** The present string, or the last one, as long as it may be a key or a value. */
  #text: string | undefined
  #inString = false
  #escaped = false
  /** The depths at which something began that still lasts; 0 when nothing did. */
  readonly #since = { text: 0, tools: 0, unread: 0, models: 0, content: 0 }

  constructor(model: string) {
    this.#model = model
    this.#bytes = Buffer.from(model).toString('latin1')
  }

  get tokens(): number {
    return this.#tokens
  }
  take(chunk: Buffer): void {
    for (let at = 0; at < chunk.length; at++) {
      if (this.#inString) at = this.#inside(chunk, at)
      else this.#between(chunk[at]!)
    }
  }
  /** AppError 403 `model_not_allowed` unless exactly this model was named. */
  end(): void {
    if (!this.#over || this.#inString || !this.#found) throw refuse(this.#model)
  }

  /** Reads on in a string; returns where it ends, or the end of the chunk. */
  #inside(chunk: Buffer, from: number): number {
    let at = from
    for (; at < chunk.length; at++) {
      if (this.#escaped) this.#escaped = false
      else if (chunk[at] === backslash) this.#escaped = true
      else if (chunk[at] === quote) {
        this.#inString = false
        break
      }
    }
    const kept = this.#text!.length
    if (kept < maxKept) this.#text += chunk.toString('latin1', from, Math.min(at, from + maxKept - kept))
    return at
  }
  #between(byte: number): void {
    if (blank.has(byte)) return
    // The body must be a single object in UTF-8.
    if (byte === 0 || this.#over || (this.#depth === 0 && byte !== brace)) throw refuse(this.#model)
    const text = this.#text
    this.#text = undefined
    if (byte === colon) return this.#named(text)
    if (text !== undefined) this.#valued(text)
    if (this.#afterColon && this.#depth === 1) this.#begins(byte)
    this.#afterColon = false
    if (byte === quote) {
      this.#inString = true
      this.#text = ''
    } else if (byte === brace || byte === bracket) this.#opened(byte)
    else if (closes.has(byte)) this.#closed()
    else if (byte === comma) this.#key = ''
  }
  #named(raw: string | undefined): void {
    if (raw === undefined) throw refuse(this.#model)
    this.#afterColon = true
    this.#raw = raw
    this.#key = this.#since.unread || raw.length >= maxKept ? '' : this.#plain(raw)
    if (this.#depth > 1) return
    const key = this.#key
    const doubtful = raw.includes('\\') || otherLists.has(key) || (key === 'model' && (raw !== key || this.#found))
    if (doubtful) throw refuse(this.#model)
    if (key === inBackground && raw !== key) throw sandboxErrors.modelCallInBackground()
  }
  /** Escapes are resolved; case and the form of characters do not count, as in some parsers. */
  #plain(raw: string): string {
    if (plainKey.test(raw)) return raw.toLowerCase()
    try {
      const text = JSON.parse(`"${Buffer.from(raw, 'latin1').toString('utf8')}"`) as string
      return text.normalize('NFKC').toLowerCase()
    } catch {
      throw refuse(this.#model)
    }
  }
  /** The first byte of a value at the top level: that of `model` is a string, and that of `background` begins with `false` or `null`. */
  #begins(byte: number): void {
    if (this.#key === 'model' && byte !== quote) throw refuse(this.#model)
    if (this.#key === inBackground && !isOff.has(byte)) throw sandboxErrors.modelCallInBackground()
  }
  #valued(text: string): void {
    const { text: inText, tools, unread, models } = this.#since
    if (unread) return
    const key = this.#key
    const kind = (key === 'type' || key === 'id') && text.length < maxKept ? this.#plain(text) : ''
    if (!inText || tools) {
      const names = models > 0 || naming.test(key)
      if (askingOthers.test(kind) || (names && text !== this.#bytes)) throw refuse(this.#model)
    }
    if (this.#depth === 1 && key === 'model') this.#found = true
    this.#counted(key, text, kind)
  }
  /** Counts what a model may read because of a string, beyond its bytes. */
  #counted(key: string, text: string, kind: string): void {
    const media = key === 'media_type' && !textType.test(text)
    const refers =
      contents.has(key) ||
      (this.#depth === 1 && key !== 'prompt' && contentsAtTop.has(key)) ||
      (this.#since.content > 0 && (key === 'url' || key === 'id')) ||
      kind === 'item_reference'
    if (!media && !refers) return
    this.#tokens += (media ? imageType : imageData).test(text) ? imageTokens : Infinity
  }
  #opened(byte: number): void {
    const [raw, key, since] = [this.#raw, this.#key, this.#since]
    this.#key = ''
    const at = ++this.#depth
    if (key === '' || since.unread || since.models) return
    const inText = since.text > 0 && !since.tools
    if (at === 2 && texts.has(raw)) since.text = at
    else if (schemas.has(raw) || (inText && argumentKeys.has(raw))) since.unread = at
    else if (inText && toolKeys.has(key)) since.tools = at
    else if (!inText && byte === bracket && naming.test(key)) since.models = at
    if (!since.content && (key === 'source' || contents.has(key) || (at === 2 && contentsAtTop.has(key))))
      since.content = at
  }
  #closed(): void {
    this.#key = ''
    const at = --this.#depth
    this.#over = at === 0
    const since = this.#since
    for (const name of ['text', 'tools', 'unread', 'models', 'content'] as const) if (at < since[name]) since[name] = 0
  }
}

const refuse = (model: string): Error =>
  sandboxErrors.modelNotAllowed({ message: `The running run may call only the model ${model}.` })
