import { randomUUID } from 'node:crypto'
import type { Duplex } from 'node:stream'
import type { FastifyBaseLogger, FastifySchemaCompiler } from 'fastify'
import type { Caller } from '#contracts/auth'
import { errorBody, failureOf, notFound } from '../../errors.ts'
import type { OpenStream, StreamEnd, StreamRegistry } from '../../streams.ts'
import type { Admission, AnyCall, Answered, ServedRoute } from '../call.ts'
import type { RequestLine } from './caller.ts'
import {
  Connection,
  initialCredit,
  kinds,
  LinkError,
  type LinkTimes,
  linkTimes,
  maxDataBytes,
  maxStreams,
  reasonOf,
  resets,
  u32,
} from './connection.ts'

export interface LinkHostOptions {
  readonly log: FastifyBaseLogger
  readonly streams: StreamRegistry
  readonly compile: FastifySchemaCompiler<unknown>
  /** Of JSON, bounded as in a body. Throws an AppError. */
  readonly parse: (json: Buffer) => unknown
  readonly logRequests: boolean
  /** Of routes that name none. */
  readonly bodyLimit: number
}

export interface Routes {
  add(served: ServedRoute): void
  find(name: string): ServedRoute
  /** The call's parts, checked as over HTTP. Throws an AppError or what Fastify throws. */
  read(served: ServedRoute, line: RequestLine, body: Buffer): Pick<AnyCall, 'params' | 'query' | 'headers' | 'body'>
}

/** How long exchanges that were begun may take when the listener closes. */
const endMs = 5_000

export const newRequestId = (): string => `req_${randomUUID().slice(24)}`

/** How JSON writes a NUL. */
const nul = '\\u0000'

/** The answering end of one link. */
export class ServedLink {
  readonly routes: Routes
  readonly admission: Admission
  readonly options: LinkHostOptions
  readonly #connection: Connection
  readonly #open = new Map<number, Exchange>()
  readonly #onClosed: () => void
  #last = 0
  #leaving = false
  #empty: (() => void) | undefined

  constructor(
    socket: Duplex,
    head: Buffer,
    routes: Routes,
    admission: Admission,
    options: LinkHostOptions,
    onClosed: () => void,
    times: LinkTimes = linkTimes,
  ) {
    this.routes = routes
    this.admission = admission
    this.options = options
    this.#onClosed = onClosed
    const use = {
      frame: (...frame: [number, number, Buffer]) => this.#frame(...frame),
      closed: () => this.#closed(),
    }
    this.#connection = new Connection(socket, head, use, times)
  }

  remove(id: number): void {
    this.#open.delete(id)
    if (this.#open.size === 0) this.#empty?.()
  }

  async end(): Promise<void> {
    this.#leaving = true
    this.#connection.send(kinds.leave, 0, u32(this.#last))
    if (this.#open.size > 0) {
      let late: NodeJS.Timeout | undefined
      await new Promise<void>((resolve) => {
        this.#empty = resolve
        late = setTimeout(resolve, endMs)
      })
      clearTimeout(late)
    }
    this.#connection.end()
  }

  #frame(kind: number, id: number, payload: Buffer): void {
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
    const line = this.options.parse(text) as RequestLine | undefined
    if (typeof line?.route !== 'string') throw new LinkError('a request line is none')
    if (this.#leaving || this.options.streams.ending || this.#open.size >= maxStreams) {
      // Nothing of it was begun; whoever asked may ask somebody else.
      this.#connection.send(kinds.reset, id, Buffer.of(resets.refused))
      if (!this.#leaving) this.#last = id
      return
    }
    this.#last = id
    const open = new Exchange(id, this.#connection, this)
    this.#open.set(id, open)
    void open.run(line, payload.subarray(4 + size), text.includes(nul))
  }

  #closed(): void {
    this.#onClosed()
    for (const open of this.#open.values()) open.leave('client_gone' satisfies StreamEnd)
    this.#empty?.()
  }
}

/** One request and its answer, on the answering side. */
class Exchange {
  readonly #id: number
  readonly #connection: Connection
  readonly #link: ServedLink
  #abort: AbortController | undefined
  #left: string | undefined
  #credit = initialCredit
  #granted: (() => void) | undefined

  constructor(id: number, connection: Connection, link: ServedLink) {
    this.#id = id
    this.#connection = connection
    this.#link = link
  }

  grant(bytes: number): void {
    this.#credit += bytes
    this.#granted?.()
  }

  /** The caller wants no more of it. */
  leave(reason: string): void {
    if (this.#left !== undefined) return
    this.#left = reason
    this.#link.remove(this.#id)
    this.#abort?.abort(reason)
    this.#granted?.()
  }

  async run(line: RequestLine, bytes: Buffer, nul: boolean): Promise<void> {
    const { routes, admission, options } = this.#link
    const began = performance.now()
    let status = 204
    try {
      // No id and no text of ours holds a NUL: as over HTTP.
      if (nul) throw notFound()
      const served = routes.find(line.route)
      const caller = admission.callerOf(served.route.access, line.headers ?? {})
      const call = this.#call(caller, routes.read(served, line, bytes))
      const answered = await served.handle(call)
      status = served.route.reply.status
      await this.#answer(status, answered ?? {})
    } catch (error) {
      const requestId = newRequestId()
      const told = failureOf(error, { requestId, route: line.route, log: options.log })
      status = told.status
      const headers = { ...told.headers, 'content-type': 'application/json', 'x-request-id': requestId }
      this.#send(kinds.head, Buffer.from(JSON.stringify([status, headers])))
      await this.#write(Buffer.from(JSON.stringify(errorBody(told, requestId))))
      this.#send(kinds.end)
    } finally {
      if (this.#left === undefined) this.#link.remove(this.#id)
      if (options.logRequests) {
        const ms = Math.round((performance.now() - began) * 10) / 10
        options.log.info({ link: true, route: line.route, status, ms }, 'request')
      }
    }
  }

  #call(caller: Caller | undefined, parts: Pick<AnyCall, 'params' | 'query' | 'headers' | 'body'>): AnyCall {
    const controller = (): AbortController => this.#controller()
    return {
      ...parts,
      get caller() {
        if (!caller) throw new Error('a route asks who calls, where nobody is told apart')
        return caller
      },
      get signal() {
        return controller().signal
      },
      wantsLines: true,
    }
  }

  #controller(): AbortController {
    if (!this.#abort) {
      this.#abort = new AbortController()
      if (this.#left !== undefined) this.#abort.abort(this.#left)
    }
    return this.#abort
  }

  async #answer(status: number, { headers, json, bytes, type, lines }: Answered): Promise<void> {
    const contentType = lines ? 'application/x-ndjson' : (type ?? (json === undefined ? undefined : 'application/json'))
    const head = [status, { ...headers, ...(contentType === undefined ? {} : { 'content-type': contentType }) }]
    const body = json === undefined ? bytes : Buffer.from(JSON.stringify(json))
    this.#send(kinds.head, Buffer.from(JSON.stringify(head)))
    if (lines) return this.#stream(lines)
    if (body) await this.#write(body)
    this.#send(kinds.end)
  }

  /** As a stream over HTTP: it ends in order when the server stops, and is cut when its reader stays away for too long. */
  #stream(lines: AsyncIterable<Buffer>): Promise<void> {
    const { streams, log } = this.#link.options
    const open: OpenStream = {
      abort: this.#controller(),
      raw: { destroy: () => this.#cut(), write: () => undefined },
      heartbeat: undefined,
      heartbeatMs: Infinity,
      lastWrite: 0,
      blockedSince: undefined,
      done: Promise.resolve(),
    }
    const remove = streams.add(open)
    open.done = this.#pump(lines, open)
      .catch((err: unknown) => {
        if (!open.abort.signal.aborted) log.error({ err }, 'stream failed')
        this.#cut()
      })
      .finally(remove)
    return open.done
  }

  async #pump(lines: AsyncIterable<Buffer>, open: OpenStream): Promise<void> {
    for await (const chunk of lines) {
      if (this.#left !== undefined) return
      const blocked = this.#write(chunk)
      if (blocked) {
        open.blockedSince = Date.now()
        await blocked
        open.blockedSince = undefined
        if (this.#left !== undefined) return
      }
    }
    this.#send(kinds.end)
  }

  #cut(): void {
    this.#send(kinds.reset, Buffer.of(resets.broken))
    this.leave('client_gone' satisfies StreamEnd)
  }

  #send(kind: (typeof kinds)[keyof typeof kinds], payload?: Buffer): void {
    if (this.#left === undefined) this.#connection.send(kind, this.#id, payload)
  }

  /** Undefined: all of it is on its way. Else resolves when that is so, or the caller has left. */
  #write(chunk: Uint8Array): Promise<void> | undefined {
    const rest = this.#push(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength))
    return rest.length === 0 && !this.#connection.full ? undefined : this.#writeRest(rest)
  }

  async #writeRest(chunk: Buffer): Promise<void> {
    let rest = chunk
    for (;;) {
      if (this.#connection.full) await this.#connection.room()
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

  /** As much as may be sent now; answers what may not. */
  #push(chunk: Buffer): Buffer {
    let rest = chunk
    while (rest.length > 0 && this.#left === undefined && this.#credit > 0 && !this.#connection.full) {
      const part = rest.subarray(0, Math.min(rest.length, this.#credit, maxDataBytes))
      this.#send(kinds.data, part)
      this.#credit -= part.length
      rest = rest.subarray(part.length)
    }
    return rest
  }
}
