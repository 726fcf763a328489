import { randomUUID } from 'node:crypto'
import type { Duplex } from 'node:stream'
import type { FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'
import type { Caller } from '#contracts/auth'
import type { Route } from '#contracts/wire/route'
import { bodyTooLarge, notFound } from '../../contracts/http-errors.ts'
import { errorBody, failureOf } from '../../http/errors.ts'
import type { OpenStream, StreamEnd } from '../../http/streams.ts'
import type { Admission, AnyCall, Answered, LinkHostOptions, ServedRoute } from '../call.ts'
import type { RequestLine } from './caller.ts'
import {
  Connection,
  type Frames,
  initialCredit,
  kinds,
  LinkError,
  type LinkTimes,
  maxDataBytes,
  maxStreams,
  reasonOf,
  resets,
  u32,
} from './connection.ts'

/** Milliseconds that begun exchanges may take when the listener closes. */
const endMs = 5_000

export const newRequestId = (): string => `req_${randomUUID().slice(24)}`

/** A NUL in JSON text. */
const nul = '\\u0000'

/** What all links of a listener share. */
interface Serving {
  readonly options: LinkHostOptions
  readonly routes: LinkRoutes
  readonly admission: Admission
  readonly times: LinkTimes | undefined
  closed(link: ServedLink): void
}

/** The answering end of one link. */
export class ServedLink implements Frames {
  readonly serving: Serving
  readonly connection: Connection
  readonly #open = new Map<number, Exchange>()
  #last = 0
  #leaving = false
  #empty: (() => void) | undefined

  constructor(socket: Duplex, head: Buffer, serving: Serving) {
    this.serving = serving
    this.connection = new Connection(socket, head, this, serving.times)
  }

  remove(id: number): void {
    this.#open.delete(id)
    if (this.#open.size === 0) this.#empty?.()
  }

  /** Begins nothing more. Begun exchanges continue, and the caller closes the link after the last one. */
  leave(): void {
    if (this.#leaving) return
    this.#leaving = true
    this.connection.send(kinds.leave, 0, u32(this.#last))
  }

  /** Resolves when all begun exchanges have ended, or had 5 s to do so, and the link is closed. */
  async end(): Promise<void> {
    this.leave()
    if (this.#open.size > 0) {
      let late: NodeJS.Timeout | undefined
      await new Promise<void>((resolve) => {
        this.#empty = resolve
        late = setTimeout(resolve, endMs)
      })
      clearTimeout(late)
    }
    this.connection.end()
  }

  frame(kind: number, id: number, payload: Buffer): void {
    if (kind === kinds.open) return this.#begin(id, payload)
    if (kind !== kinds.reset && kind !== kinds.credit) throw new LinkError('a frame is of no known kind')
    if (id === 0 || id > this.#last) throw new LinkError('a frame is of no exchange')
    const open = this.#open.get(id)
    if (kind === kinds.credit) open?.grant(payload.readUInt32BE(0))
    else open?.leave(reasonOf(payload[0]))
  }

  #begin(id: number, payload: Buffer): void {
    if (id <= this.#last) throw new LinkError('an exchange was begun twice')
    const size = payload.readUInt32BE(0)
    const text = payload.subarray(4, 4 + size)
    const line = this.serving.options.parse(text) as RequestLine | undefined
    if (typeof line?.route !== 'string') throw new LinkError('a request line is invalid')
    this.#last = id
    if (this.#leaving || this.serving.options.streams.ending || this.#open.size >= maxStreams) {
      // The exchange was not begun, so the caller may ask another process.
      return this.connection.send(kinds.reset, id, Buffer.of(resets.refused))
    }
    const open = new Exchange(id, this)
    this.#open.set(id, open)
    open.begin(line, payload.subarray(4 + size), text.includes(nul))
  }

  closed(): void {
    this.serving.closed(this)
    for (const open of this.#open.values()) open.leave('client_gone' satisfies StreamEnd)
    this.#empty?.()
  }
}

/**
 * One request and its answer, on the answering side. Its lines are a stream as over HTTP: it ends in order when the server
 * stops, and is cut when its reader stays away for too long.
 */
class Exchange implements OpenStream {
  readonly heartbeat = undefined
  readonly heartbeatMs = Infinity
  readonly lastWrite = 0
  blockedSince: number | undefined
  done: Promise<void> = Promise.resolve()
  readonly #id: number
  readonly #link: ServedLink
  #abort: AbortController | undefined
  #left: string | undefined
  #credit = initialCredit
  #granted: (() => void) | undefined

  constructor(id: number, link: ServedLink) {
    this.#id = id
    this.#link = link
  }

  get abort(): AbortController {
    if (!this.#abort) {
      this.#abort = new AbortController()
      if (this.#left !== undefined) this.#abort.abort(this.#left)
    }
    return this.#abort
  }
  get raw(): OpenStream['raw'] {
    return this
  }
  /** Does nothing: an exchange has no heartbeat. */
  write(): void {}
  destroy(): void {
    this.#send(kinds.reset, Buffer.of(resets.broken))
    this.leave('client_gone' satisfies StreamEnd)
  }

  grant(bytes: number): void {
    this.#credit += bytes
    this.#granted?.()
  }

  /** Called when the caller no longer needs the rest. */
  leave(reason: string): void {
    if (this.#left !== undefined) return
    this.#left = reason
    this.#link.remove(this.#id)
    this.#abort?.abort(reason)
    this.#granted?.()
  }

  /** Starts the handler. The request is released once it is answered, because the answer's lines may continue for long. */
  begin(line: RequestLine, bytes: Buffer, nul: boolean): void {
    const { route } = line
    const { logRequests, log } = this.#link.serving.options
    const began = performance.now()
    void this.#handle(line, bytes, nul)
      .then(({ status, answered }) => this.#answer(status, answered))
      .catch((error: unknown) => this.#fail(error, route))
      .then((status) => {
        if (this.#left === undefined) this.#link.remove(this.#id)
        if (!logRequests) return
        log.info({ link: true, route, status, ms: Math.round((performance.now() - began) * 10) / 10 }, 'request')
      })
  }

  async #handle(line: RequestLine, bytes: Buffer, nul: boolean): Promise<{ status: number; answered: Answered }> {
    const { routes, admission } = this.#link.serving
    // As over HTTP, no id and no text may contain a NUL.
    if (nul) throw notFound()
    const served = routes.find(line.route)
    const { access } = served.route
    if (!admission.callerOf && access !== 'network' && access !== 'public') throw notFound()
    const caller = admission.callerOf?.(access, line.headers ?? {})
    const call = this.#call(caller, routes.read(served, line, bytes))
    return { status: served.route.reply.status, answered: (await served.handle(call)) ?? {} }
  }

  #call(caller: Caller | undefined, parts: Parts): AnyCall {
    const signal = (): AbortSignal => this.abort.signal
    return {
      ...parts,
      wantsLines: true,
      get caller() {
        if (!caller) throw new Error('a route needs the caller on a listener without authentication')
        return caller
      },
      get signal() {
        return signal()
      },
    }
  }

  async #answer(status: number, { headers, json, bytes, type, lines, parts }: Answered): Promise<number> {
    const flowing = lines ?? parts
    const jsonType = (json ?? parts) === undefined ? undefined : 'application/json'
    const contentType = lines ? 'application/x-ndjson' : (type ?? jsonType)
    this.#head(status, { ...headers, ...(contentType === undefined ? {} : { 'content-type': contentType }) })
    if (flowing) await this.#stream(flowing)
    else await this.#end(json === undefined ? bytes : Buffer.from(JSON.stringify(json)))
    return status
  }

  async #fail(error: unknown, route: string): Promise<number> {
    const requestId = newRequestId()
    const told = failureOf(error, { requestId, route, log: this.#link.serving.options.log })
    this.#head(told.status, { ...told.headers, 'content-type': 'application/json', 'x-request-id': requestId })
    await this.#end(Buffer.from(JSON.stringify(errorBody(told, requestId))))
    return told.status
  }

  #head(status: number, headers: object): void {
    this.#send(kinds.head, Buffer.from(JSON.stringify([status, headers])))
  }

  async #end(body: Uint8Array | undefined): Promise<void> {
    if (body) await this.#write(body)
    this.#send(kinds.end)
  }

  #stream(lines: AsyncIterable<Buffer>): Promise<void> {
    const { streams, log } = this.#link.serving.options
    const remove = streams.add(this)
    this.done = this.#pump(lines)
      .catch((err: unknown) => {
        if (!this.abort.signal.aborted) log.error({ err }, 'stream failed')
        this.destroy()
      })
      .finally(remove)
    return this.done
  }

  async #pump(lines: AsyncIterable<Buffer>): Promise<void> {
    for await (const chunk of lines) {
      if (this.#left !== undefined) return
      const blocked = this.#write(chunk)
      if (blocked) {
        this.blockedSince = Date.now()
        await blocked
        this.blockedSince = undefined
        if (this.#left !== undefined) return
      }
    }
    this.#send(kinds.end)
  }

  #send(kind: (typeof kinds)[keyof typeof kinds], payload?: Buffer): void {
    if (this.#left === undefined) this.#link.connection.send(kind, this.#id, payload)
  }

  /** Undefined: everything was sent. Otherwise resolves when everything was sent, or the caller has left. */
  #write(chunk: Uint8Array): Promise<void> | undefined {
    const rest = this.#push(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength))
    return rest.length === 0 && !this.#link.connection.full ? undefined : this.#writeRest(rest)
  }

  async #writeRest(chunk: Buffer): Promise<void> {
    let rest = chunk
    for (;;) {
      if (this.#link.connection.full) await this.#link.connection.room()
      if (this.#left !== undefined || rest.length === 0) return
      if (this.#credit <= 0) {
        await new Promise<void>((resolve) => {
          this.#granted = resolve
        })
        this.#granted = undefined
      }
      rest = this.#push(rest)
    }
  }

  /** Sends as much as the credit allows. Returns the rest. */
  #push(chunk: Buffer): Buffer {
    let rest = chunk
    while (rest.length > 0 && this.#left === undefined && this.#credit > 0 && !this.#link.connection.full) {
      const part = rest.subarray(0, Math.min(rest.length, this.#credit, maxDataBytes))
      this.#send(kinds.data, part)
      this.#credit -= part.length
      rest = rest.subarray(part.length)
    }
    return rest
  }
}

type Parts = Pick<AnyCall, 'params' | 'query' | 'headers' | 'body'>

/** The routes of a listener, for its links. */
export class LinkRoutes {
  readonly #options: LinkHostOptions
  readonly #served = new Map<string, ServedRoute>()
  /** A schema is compiled when it is first needed, because most routes are never called over a link. */
  readonly #checks = new WeakMap<object, ReturnType<FastifySchemaCompiler<unknown>>>()

  constructor(options: LinkHostOptions) {
    this.#options = options
  }

  add(one: ServedRoute): void {
    this.#served.set(`${one.route.method} ${one.route.path}`, one)
  }
  find(name: string): ServedRoute {
    const found = this.#served.get(name)
    if (!found) throw notFound({ message: 'No route answers this.' })
    return found
  }
  /** The parts of a call, checked as over HTTP. Throws an AppError or Fastify's error. */
  read({ route }: ServedRoute, line: RequestLine, bytes: Buffer): Parts {
    const { parse, bodyLimit } = this.#options
    if (bytes.length > (route.bodyLimit ?? bodyLimit)) throw bodyTooLarge()
    return {
      params: this.#check(route, 'params', route.params, line.params ?? {}),
      query: this.#check(route, 'querystring', route.query, line.query ?? {}),
      headers: this.#check(route, 'headers', route.headers, line.headers ?? {}) as AnyCall['headers'],
      body: route.bytes ? Buffer.from(bytes) : this.#check(route, 'body', route.body, route.body && parse(bytes)),
    }
  }
  #check(
    { method, path: url }: Route,
    httpPart: 'params' | 'querystring' | 'headers' | 'body',
    schema: object | undefined,
    value: unknown,
  ): unknown {
    if (!schema) return value
    let valid = this.#checks.get(schema)
    if (!valid) this.#checks.set(schema, (valid = this.#options.compile({ schema, httpPart, method, url })))
    if (valid(value) === true) return value
    const { errors } = valid as unknown as { errors?: FastifySchemaValidationError[] }
    throw Object.assign(new Error('invalid'), { validation: errors ?? [], validationContext: httpPart })
  }
}
