import type { FastifyReply, FastifyRequest } from 'fastify'
import { type Static, type TSchema, Type } from '@sinclair/typebox'
import type { Caller, Guard } from '#contracts/auth'
import type {
  BodyOf,
  BytesReply,
  HeadersOf,
  JsonReply,
  LinesReply,
  NoReply,
  ParamsOf,
  QueryOf,
  Route,
} from '#contracts/wire/route'
import { access } from '../http/access.ts'
import { failures, jsonLines, negotiated, NoContent } from '../http/answers.ts'
import type { App } from '../http/app.ts'
import { onceClosed, stream, type StreamEnd } from '../http/streams.ts'
import { takeBytes } from './bodies.ts'
import { linkHeader, linkVersion } from './link/connection.ts'
import { type LinkHost, linkHostKey } from './link/host.ts'
import type { Admission, AnyCall, Answered, ServedRoute } from './call.ts'

export { type Admission, trusted } from './call.ts'

/** One request as a handler sees it, over HTTP or a link. */
export interface Call<R extends Route> extends AnyCall {
  readonly params: ParamsOf<R>
  readonly query: QueryOf<R>
  readonly headers: HeadersOf<R> & AnyCall['headers']
  readonly body: BodyOf<R>
}

interface WithHeaders {
  readonly headers?: Readonly<Record<string, string>>
}
type JsonOf<S> = S extends TSchema ? WithHeaders & { readonly json: Static<S> } : never
/** What a handler of a route returns. */
type AnswerOf<R extends Route> = R['reply'] extends NoReply
  ? WithHeaders | void
  : R['reply'] extends BytesReply
    ? WithHeaders & { readonly bytes: Uint8Array; readonly type: string }
    : R['reply'] extends LinesReply
      ? (WithHeaders & { readonly lines: AsyncIterable<Buffer> }) | JsonOf<R['reply']['json']>
      : R['reply'] extends JsonReply
        ? JsonOf<R['reply']['json']> | (WithHeaders & { readonly parts: AsyncIterable<Buffer> })
        : never
// A row with `streams` or a `file` is served by a handler of Fastify, with `optionsOf`.

export type Handler<R extends Route> = (call: Call<R>) => Promise<AnswerOf<R>> | AnswerOf<R>

/**
 * Serves one row of a wire's table, with the schemas, OpenAPI entry and access of the table. It is reachable over HTTP and, if the listener accepts
 * links, over those, with the same checks; over a link no Fastify hook runs. With a `guard`, whose scope this is, `call.caller` is the caller that
 * the guard found.
 */
export function serve<R extends Route>(app: App, route: R, handler: Handler<R>, guard?: Guard): void {
  const host = app.getDecorator<LinkHost>(linkHostKey)
  // The handler itself, because a wrapper function would cost every request.
  const handle = handler as unknown as ServedRoute['handle']
  const { bodyLimit } = route
  const answer = async (request: FastifyRequest, reply: FastifyReply): Promise<unknown> => {
    if (host.offered) void reply.header(linkHeader, linkVersion)
    const call = new HttpCall(request, reply, guard)
    return send(call, reply, route, (await handle(call)) ?? {})
  }
  const options = { ...optionsOf(route), handler: answer as never }
  if (!route.bytes) app.route(options)
  else {
    // Use a separate scope, because other routes read JSON.
    void app.register(async (scope) => {
      takeBytes(scope, bodyLimit)
      scope.route(options)
    })
  }
  host.add({ route, handle })
}

/** The Fastify options of a row, without its handler: for rows whose handler itself reads and sends bytes as a stream. */
export const optionsOf = (route: Route) => ({
  method: route.method,
  url: route.path,
  ...access(route.access, {
    ...('lines' in route.reply ? { stream: true as const } : {}),
    ...(route.streams ? { upload: true as const } : {}),
  }),
  ...(route.bodyLimit === undefined ? {} : { bodyLimit: route.bodyLimit }),
  schema: schemaOf(route),
})

/** From now on admitted callers may use one link instead of a connection per request. Call it once per listener. */
export function acceptLinks(app: App, admission: Admission): void {
  app.getDecorator<LinkHost>(linkHostKey).accept(admission)
}

class HttpCall implements AnyCall {
  readonly #request: FastifyRequest
  readonly #reply: FastifyReply
  readonly #guard: Guard | undefined
  #abort: AbortController | undefined

  constructor(request: FastifyRequest, reply: FastifyReply, guard: Guard | undefined) {
    this.#request = request
    this.#reply = reply
    this.#guard = guard
  }
  get request(): FastifyRequest {
    return this.#request
  }
  get params(): unknown {
    return this.#request.params
  }
  get query(): unknown {
    return this.#request.query
  }
  get headers(): AnyCall['headers'] {
    return this.#request.headers
  }
  get body(): unknown {
    return this.#request.body
  }
  get caller(): Caller {
    if (!this.#guard) throw new Error(`${this.#request.routeOptions.url} reads the caller, but has no guard`)
    return this.#guard.callerOf(this.#request)
  }
  get wantsLines(): boolean {
    return this.#request.headers.accept?.includes('application/x-ndjson') === true
  }
  get signal(): AbortSignal {
    return this.abort.signal
  }
  get abort(): AbortController {
    if (!this.#abort) {
      const abort = (this.#abort = new AbortController())
      const { raw } = this.#reply
      const gone = (): void => {
        if (!raw.writableFinished) abort.abort('client_gone' satisfies StreamEnd)
      }
      onceClosed(raw, gone)
    }
    return this.#abort
  }
}

function send(call: HttpCall, reply: FastifyReply, { reply: kind }: Route, answered: Answered): unknown {
  const { headers = {}, json, bytes, type, lines, parts } = answered
  const flowing = lines ?? parts
  if (flowing) {
    const contentType = lines ? 'application/x-ndjson' : 'application/json; charset=utf-8'
    const options = { contentType, status: kind.status, headers, abort: call.abort }
    // For HEAD nothing is read, and what has begun is released.
    if (call.request.method === 'HEAD') void flowing[Symbol.asyncIterator]().return?.()
    return stream(call.request, reply, options, () => flowing).then(() => reply)
  }
  void reply.code(kind.status).headers(headers)
  if (!bytes) return reply.send(json)
  return reply
    .type(type ?? 'application/octet-stream')
    .send(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength))
}

/** The schema of a row in the form for Fastify and OpenAPI. */
function schemaOf(route: Route): object {
  const { tags, summary, description, params, query, headers, body, bytes, streams } = route
  return {
    tags,
    summary,
    ...(description === undefined ? {} : { description }),
    ...(headers ? { headers } : {}),
    ...(params ? { params } : {}),
    ...(query ? { querystring: query } : {}),
    ...(body ? { body } : {}),
    ...(bytes ? { consumes: Object.keys(bytes), body: { description: 'The bytes.' } } : {}),
    ...(streams ? { consumes: [anyBytes], body: Type.String({ format: 'binary', description: 'Of any type.' }) } : {}),
    response: {
      [route.reply.status]: responseOf(route.reply),
      ...('created' in route.reply ? { 201: responseOf(route.reply) } : {}),
      ...('file' in route.reply ? ofRanges : {}),
      ...failures(...(route.errors ?? [])),
    },
  }
}

const anyBytes = 'application/octet-stream'
const binary = { [anyBytes]: Type.String({ format: 'binary' }) }
const ofRanges: object = {
  206: negotiated('The bytes of the `Range`.', binary),
  304: Type.Unsafe<undefined>({ type: 'null', description: 'It matches `If-None-Match`.' }),
}

function responseOf(reply: Route['reply']): object {
  if ('lines' in reply) {
    return reply.json
      ? negotiated(reply.description, { 'application/json': reply.json, 'application/x-ndjson': reply.lines })
      : jsonLines(reply.description, reply.lines)
  }
  if ('file' in reply) return negotiated(reply.file, binary)
  if ('bytes' in reply) return negotiated(reply.description, reply.bytes)
  return 'json' in reply ? reply.json : NoContent
}
