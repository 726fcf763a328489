// For model providers and for the code that calls models: connections, the cheapest call, and the plugin around a provider.
import type { LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { setImmediate as turn } from 'node:timers/promises'
import type { Static, TObject } from '@sinclair/typebox'
import { Agent, type Dispatcher } from 'undici'
import {
  type DirectModel,
  type ModelAnswer,
  ModelEgress,
  type ModelFetch,
  type ModelPart,
  type ModelParts,
  type ModelPost,
  type ModelProvider,
  type ModelProviderContext,
  type ModelRequest,
  Models,
  ModelTenants,
  type OpenModel,
} from '#contracts/model'
import type { ErrorTable } from '../contracts/errors.ts'
import { ForbiddenAddressError, guardedLookup, outboundUrl, systemResolve } from './outbound.ts'
import { type TenantList, Tenants } from '../contracts/tenant-list.ts'
import { Settings } from './settings.ts'
import { type Capability, definePlugin, maybe, type Plugin } from '../plugin.ts'

// Not imported, because an import would load Node's fetch: see kernel/http/errors.ts.
const { STATUS_CODES } = process.getBuiltinModule('node:http')

export function defineModelProvider<C extends TObject>(spec: {
  readonly name: string
  readonly config?: C
  readonly errors?: ErrorTable
  /** Undefined: the provider is not configured (e.g. no API key), and is then absent from the role. */
  create(config: Static<C>, ctx: ModelProviderContext): Promise<ModelProvider | undefined>
}): Plugin {
  type Provides = { models: typeof Models; tenants: typeof ModelTenants }
  return definePlugin<TObject, { egress: Capability<ModelEgress, 'maybe'> }, Provides>({
    name: `model-${spec.name}`,
    config: Settings({
      ...spec.config?.properties,
      tenants: Tenants('The tenants whose runs may use its models.', ['*']),
    }),
    ...(spec.errors ? { errors: spec.errors } : {}),
    requires: { egress: maybe(ModelEgress) },
    provides: { models: Models, tenants: ModelTenants },
    async setup(ctx) {
      const { egress } = ctx.deps
      const { tenants, ...config } = ctx.config as { readonly tenants: TenantList }
      const connections = createModelConnections()
      ctx.onStop(connections.close)
      const provider = await spec.create(config as Static<C>, {
        fetch: connections.fetch,
        post: egress ? postBy(egress.fetch) : connections.post,
        egress: egress && { baseUrl: egress.baseUrl(spec.name), fetch: egress.fetch },
        onStop: (fn) => ctx.onStop(fn),
      })
      return { models: provider ? { [spec.name]: provider } : {}, tenants: { [spec.name]: tenants } }
    },
  })
}

/** The cheapest way of calling a model that the model offers. */
export function openerOf(model: LanguageModelV4): OpenModel {
  return 'doOpen' in model ? (model as DirectModel).doOpen.bind(model) : (options) => openStream(model, options)
}

async function openStream(model: LanguageModelV4, options: LanguageModelV4CallOptions): Promise<ModelParts> {
  const { stream } = await model.doStream(options)
  const reader = stream.getReader()
  const { abortSignal } = options
  // Cancelling the reader also ends the call of a provider that ignores the signal.
  const close = (): void => {
    abortSignal?.removeEventListener('abort', close)
    reader.cancel().catch(() => {})
  }
  abortSignal?.addEventListener('abort', close, { once: true })
  return {
    async next() {
      const { done, value } = await reader.read()
      return done ? undefined : [value]
    },
    close,
  }
}

/** The parts of the provider specification that one of our parts represents. */
export const streamPartsOf = (part: ModelPart): readonly LanguageModelV4StreamPart[] =>
  part.type === 'text-deltas' ? part.deltas.map((delta) => ({ type: 'text-delta', id: part.id, delta })) : [part]

/** Parts in the form of `doStream`: one by one, and none after an abort. */
export function streamOf(
  parts: ModelParts,
  { abortSignal }: Pick<LanguageModelV4CallOptions, 'abortSignal'>,
): ReadableStream<LanguageModelV4StreamPart> {
  let held: readonly LanguageModelV4StreamPart[] | undefined = []
  let at = 0
  return new ReadableStream(
    {
      async pull(controller) {
        abortSignal?.throwIfAborted()
        if (at === held?.length) {
          held = (await parts.next())?.flatMap(streamPartsOf)
          at = 0
        }
        if (held) controller.enqueue(held[at++]!)
        else controller.close()
      },
      cancel: () => parts.close(),
    },
    { highWaterMark: 0 },
  )
}

export interface ModelConnections {
  readonly fetch: ModelFetch
  readonly post: ModelPost
  close(): Promise<void>
}

/** Milliseconds. A model may think for minutes before its first byte; the run's own deadline ends the call sooner. */
const firstByteMs = 300_000

/** Which addresses may be connected to, whatever a name resolves to. */
type Permits = (address: string) => boolean

/**
 * Keep-alive connections to model servers, as many as there are open streams: a pool with a limit would queue a stream
 * silently behind others. Built on undici's `dispatch`, which costs half of `fetch` for a short streamed answer.
 */
export function createModelConnections({ permits }: { permits?: Permits } = {}): ModelConnections {
  const agent = new Agent({
    pipelining: 1,
    // With HTTP/2 an abort would end a stream but not the socket, and the model server might continue to generate.
    allowH2: false,
    connect: { timeout: 10_000, ...(permits ? { lookup: guardedLookup(systemResolve, permits) } : {}) },
    headersTimeout: firstByteMs,
    bodyTimeout: firstByteMs,
    keepAliveTimeout: 30_000,
  })
  return {
    post: (url, request) => exchange(agent, url, 'POST', request),
    async fetch(input, { method = 'GET', headers, body, signal } = {}) {
      const text = input instanceof Request ? input.url : String(input)
      // A literal is never looked up, so the guard of the look-up does not see it.
      const url = permits ? outboundUrl(text, { permits, schemes: ['http', 'https'] }) : new URL(text)
      if (typeof url === 'string') throw new ForbiddenAddressError()
      const given = typeof body === 'string' ? [body] : []
      const request = { headers: headers as Record<string, string>, body: given, signal: signal! }
      return responseOf(await exchange(agent, url, method, request))
    },
    close: () => agent.destroy(),
  }
}

/** Makes a `post` from a fetch that does not go directly to the model server. */
export const postBy =
  (fetch: ModelFetch): ModelPost =>
  async (url, { headers, body, signal = null }) => {
    const response = await fetch(url, { method: 'POST', headers, body: body.join(''), signal })
    const reader = response.body?.getReader()
    return {
      status: response.status,
      headers: Object.fromEntries(response.headers),
      async read() {
        const { value } = (await reader?.read()) ?? {}
        return value && [value]
      },
      close: () => void reader?.cancel().catch(() => {}),
    }
  }

function exchange(agent: Agent, url: URL, method: string, request: ModelRequest): Promise<ModelAnswer> {
  return new Promise((resolve, reject) => {
    const { headers, body, signal } = request
    if (signal?.aborted) return reject(abortError(signal))
    const answer = new Answer(signal, resolve, reject)
    const { origin, pathname, search } = url
    const sent = { origin, path: pathname + search, method: method as Dispatcher.HttpMethod }
    agent.dispatch({ ...sent, ...bodyOf(headers, body) }, answer)
  })
}

/** Characters of a text that are sent in one step. The rest of a larger text waits while other work gets a turn. */
const sliceChars = 128 * 1024

function bodyOf(headers: ModelRequest['headers'], texts: ModelRequest['body']) {
  const chars = texts.reduce((sum, { length }) => sum + length, 0)
  if (chars <= sliceChars) return { headers, body: texts.length > 0 ? texts.join('') : null }
  const bytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0)
  // Undici accepts any iterable, but its types only name streams.
  const body = slicesOf(texts) as unknown as Dispatcher.DispatchOptions['body'] & object
  return { headers: { ...headers, 'content-length': String(bytes) }, body }
}

async function* slicesOf(texts: readonly string[]): AsyncGenerator<Buffer> {
  for (const text of texts) {
    for (let from = 0, to = 0; from < text.length; from = to) {
      to = from + sliceChars
      // Keep both halves of a surrogate pair together.
      if (to < text.length && (text.charCodeAt(to) & 0xfc00) === 0xdc00) to++
      yield Buffer.from(text.slice(from, to))
      await turn()
    }
  }
}

/** Reads of a socket (up to 64 KiB each) that are buffered for a slow reader before the socket is paused. */
const readsAhead = 4

class Answer implements ModelAnswer, Dispatcher.DispatchHandler {
  status = 0
  headers: Record<string, string> = {}
  readonly #signal: AbortSignal | undefined
  readonly #begun: (answer: ModelAnswer) => void
  readonly #refused: (error: Error) => void
  #exchange: Dispatcher.DispatchController | undefined
  #arrived: Buffer[] = []
  #over = false
  #failure: Error | undefined
  #reader: PromiseWithResolvers<readonly Buffer[] | undefined> | undefined

  constructor(signal: AbortSignal | undefined, begun: (answer: ModelAnswer) => void, refused: (error: Error) => void) {
    this.#signal = signal
    this.#begun = begun
    this.#refused = refused
    signal?.addEventListener('abort', this.#onAbort, { once: true })
  }

  read(): Promise<readonly Buffer[] | undefined> {
    if (this.#arrived.length > 0) return Promise.resolve(this.#take())
    if (this.#failure) return Promise.reject(this.#failure)
    if (this.#over) return Promise.resolve(undefined)
    this.#reader = Promise.withResolvers()
    return this.#reader.promise
  }

  close(): void {
    if (!this.#over) this.#exchange?.abort(new DOMException('The reader left.', 'AbortError'))
  }

  onRequestStart(exchange: Dispatcher.DispatchController): void {
    this.#exchange = exchange
    if (this.#signal?.aborted) exchange.abort(abortError(this.#signal))
  }

  onResponseStart(_: Dispatcher.DispatchController, status: number, headers: Record<string, unknown>): void {
    // An informational answer comes before the real one.
    if (status < 200) return
    this.status = status
    this.headers = headers as Record<string, string>
    this.#begun(this)
  }

  onResponseData(_: Dispatcher.DispatchController, chunk: Buffer): void {
    // After a pause inside a chunk of the transfer coding, undici flushes its parser with an empty chunk.
    if (chunk.length === 0) return
    this.#arrived.push(chunk)
    if (this.#arrived.length >= readsAhead) this.#exchange!.pause()
    // Deliver after everything else of the same socket read, so that an answer in one packet is taken at once.
    if (this.#reader && this.#arrived.length === 1) queueMicrotask(this.#hand)
  }

  onResponseEnd(): void {
    this.#end()
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    this.#failure = error
    this.#refused(error)
    this.#end()
  }

  #end(): void {
    this.#over = true
    this.#signal?.removeEventListener('abort', this.#onAbort)
    this.#hand()
  }

  #onAbort = (): void => {
    const error = abortError(this.#signal!)
    // A request that still waits for its connection has no controller; it is aborted when it starts.
    this.#refused(error)
    this.#exchange?.abort(error)
  }

  #hand = (): void => {
    const reader = this.#reader
    if (!reader) return
    this.#reader = undefined
    if (this.#arrived.length > 0) reader.resolve(this.#take())
    else if (this.#failure) reader.reject(this.#failure)
    else reader.resolve(undefined)
  }

  #take(): readonly Buffer[] {
    const arrived = this.#arrived
    this.#arrived = []
    if (arrived.length >= readsAhead && !this.#over) this.#exchange!.resume()
    return arrived
  }
}

function responseOf(answer: ModelAnswer): Response {
  const source = {
    async pull(controller: ReadableStreamDefaultController<Uint8Array>) {
      const arrived = await answer.read()
      if (arrived) for (const bytes of arrived) controller.enqueue(bytes)
      else controller.close()
    },
    cancel: () => answer.close(),
  }
  const { status, headers } = answer
  const body = bodiless.has(status) ? null : new ReadableStream(source, { highWaterMark: 0 })
  return new Response(body, { status, statusText: STATUS_CODES[status] ?? '', headers: headers as never })
}

/** `new Response` refuses a body with these statuses. */
const bodiless: ReadonlySet<number> = new Set([204, 205, 304])

const abortError = (signal: AbortSignal): Error =>
  signal.reason instanceof Error && signal.reason.name === 'AbortError'
    ? signal.reason
    : new DOMException('The request was aborted.', 'AbortError')
