import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import type { ModelReply, ModelRequestBody } from './model-reply.ts'
import { anthropicWire, chatWire, type Frames, inputTokens, type Wire } from './model-wire.ts'
import { responsesWire } from './responses-wire.ts'

/** One request as it was received, and how it ended. */
export interface ModelRequest {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: ModelRequestBody
  /** True once the client closed the connection before the answer was complete. */
  readonly closedEarly: boolean
  /** `performance.now()` when it closed early. */
  readonly closedAt: number | undefined
  /** Resolves when the answer is complete or its connection closed. */
  readonly ended: Promise<void>
}

export interface ModelServer {
  /** `http://127.0.0.1:<port>/v1`: the base URL of both providers. */
  readonly url: string
  /** Every request so far, oldest first. Empty when `record` is false. */
  readonly requests: readonly ModelRequest[]
  /** Sets the replies to the next requests, one each. After them `reply` of the options answers. */
  next(...replies: ModelReply[]): void
  stop(): Promise<void>
}

export interface ModelServerOptions {
  /** The answer to every request that `next` did not prepare. */
  readonly reply?: ModelReply | ((request: ModelRequestBody) => ModelReply)
  /** False for benchmarks: no request is recorded. */
  readonly record?: boolean
  readonly port?: number
  /** Longer prompts are refused with the vendor's words. */
  readonly contextTokens?: number
}

/**
 * A stand-in for a model server on a free port of 127.0.0.1: OpenAI chat completions, Responses and model list, Anthropic
 * messages.
 * Stopped after the test when `t` is given.
 */
export async function startModelServer(
  t?: Pick<TestContext, 'after'>,
  options: ModelServerOptions = {},
): Promise<ModelServer> {
  const requests: ModelRequest[] = []
  const prepared: ModelReply[] = []
  const replyTo = (body: ModelRequestBody): ModelReply =>
    prepared.shift() ?? (typeof options.reply === 'function' ? options.reply(body) : (options.reply ?? {}))
  const record = (request: IncomingMessage, response: ServerResponse, body: ModelRequestBody): void => {
    if (options.record === false) return
    const { promise, resolve } = Promise.withResolvers<void>()
    const entry = {
      path: request.url!,
      headers: request.headers,
      body,
      closedEarly: false,
      closedAt: undefined as number | undefined,
      ended: promise,
    }
    response.once('close', () => {
      if (!response.writableFinished) {
        entry.closedEarly = true
        entry.closedAt = performance.now()
      }
      resolve()
    })
    requests.push(entry)
  }
  // A benchmark requests the same answer thousands of times, so it is encoded once.
  const encoded = new Map<string, Buffer>()
  const whole = (key: string, frames: () => Frames): Buffer | string => {
    if (options.record !== false) return frames().all()
    const known = encoded.get(key) ?? Buffer.from(frames().all())
    encoded.set(key, known)
    return known
  }
  const server = createServer(async (request, response) => {
    // Some clients name a beta of the API in the query.
    const [path = ''] = request.url!.split('?')
    const wire = wires[path]
    if (path === '/v1/models') return json(response, 200, { object: 'list', data: [{ id: 'stand-in' }] })
    if (!wire || request.method !== 'POST') return json(response, 404, { error: { message: 'no such route' } })
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = JSON.parse(Buffer.concat(chunks).toString('utf8')) as ModelRequestBody
    record(request, response, body)
    const { contextTokens } = options
    if (contextTokens !== undefined && inputTokens(body) > contextTokens) return json(response, 400, wire.tooLong)
    await answer(wire, response, body, replyTo(body), whole)
  })
  await new Promise<void>((resolve) => server.listen(options.port ?? 0, '127.0.0.1', 4096, resolve))
  const stop = async (): Promise<void> => {
    const closed = new Promise((resolve) => server.close(resolve))
    server.closeAllConnections()
    await closed
  }
  t?.after(stop)
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    requests,
    next: (...replies) => void prepared.push(...replies),
    stop,
  }
}

const wires: Readonly<Record<string, Wire>> = {
  '/v1/chat/completions': chatWire,
  '/v1/messages': anthropicWire,
  '/v1/responses': responsesWire,
}

const twentyWords = 'one two three four five six seven eight nine ten '.repeat(2).trimEnd()

function json(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

async function answer(
  wire: Wire,
  response: ServerResponse,
  body: ModelRequestBody,
  reply: ModelReply,
  whole: (key: string, frames: () => Frames) => Buffer | string,
): Promise<void> {
  if (reply.hang) return
  if (reply.status !== undefined) return json(response, reply.status, wire.error(`stand-in says ${reply.status}`))
  const text = reply.text ?? (reply.toolCalls || reply.items ? '' : twentyWords)
  if (body.stream !== true) return json(response, 200, wire.whole(body, text, reply))
  const encode = (): Frames => wire.frames(body, pieces(text, reply.deltas), reply)
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' })
  if (!reply.delayMs && reply.resetAfter === undefined && reply.hangAfter === undefined) {
    response.end(whole(`${wire.name} ${body.model} ${JSON.stringify(reply)}`, encode))
    return
  }
  const frames = encode()
  response.write(frames.head)
  for (const [index, delta] of frames.deltas.entries()) {
    if (reply.resetAfter === index) {
      await reply.resetWhen
      return void response.destroy()
    }
    if (reply.hangAfter === index) return
    if (reply.delayMs) await new Promise((resolve) => setTimeout(resolve, reply.delayMs))
    if (response.destroyed) return
    // Wait until the bytes have left, because cutting the connection next would lose them.
    await new Promise((resolve) => response.write(delta, resolve))
  }
  if (reply.hangAfter !== undefined) return
  if (reply.resetAfter !== undefined) return void response.destroy()
  response.end(frames.tail)
}

/** Text in `count` pieces, which joined give the text: words when no count is given. A text that is too short is repeated. */
function pieces(text: string, count: number | undefined): string[] {
  const words = text.match(/\S+\s*|\s+/g) ?? []
  if (count === undefined) return words
  return Array.from({ length: count }, (_, i) => words[i % words.length] ?? 'x ')
}
