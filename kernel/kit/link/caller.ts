import type { LookupFunction } from 'node:net'
import { request as overTls } from 'node:https'
import type { Duplex } from 'node:stream'
import { Answer, type ExchangeOptions, type Reply, type ReplyHeaders } from '../answer.ts'
import type { TlsFiles } from '../tls.ts'
import {
  Connection,
  type Frames,
  initialCredit,
  kinds,
  LinkError,
  linkHeader,
  linkPath,
  linkProtocol,
  type LinkTimes,
  linkVersion,
  maxOpenBytes,
  maxStreams,
  resetOf,
  resets,
  u32,
} from './connection.ts'

// Not imported, because an import would load Node's fetch: see kernel/http/errors.ts.
const { request: overHttp } = process.getBuiltinModule('node:http')

/** The request line: the route by its name in the wire's table, with its parameters. */
export interface RequestLine {
  /** `POST /runner/sessions/:id/worker`. */
  readonly route: string
  readonly params?: object | undefined
  readonly query?: object | undefined
  readonly headers?: Readonly<Record<string, string>>
}

/** The peer certainly did not begin the exchange. */
export class Refused extends Error {
  readonly code = 'LINK_REFUSED'
  constructor() {
    super('the peer begins nothing more on this link')
  }
}

interface Open {
  readonly answer: Answer
  /** How many bytes the peer may still send. */
  credit: number
  /** How many bytes were read since the peer last got credit. */
  owed: number
}

/** Milliseconds that a link may be unused. */
const idleMs = 60_000
const noBody = Buffer.alloc(0)

/** The calling end of a link. */
export class LinkCaller implements Frames {
  readonly #connection: Connection
  readonly #streams = new Map<number, Open>()
  #last = 0
  #leaving = false
  #seen = 0
  #idleMs = 0

  constructor(socket: Duplex, head: Buffer, times?: LinkTimes) {
    this.#connection = new Connection(socket, head, this, times)
  }

  /** Whether an exchange with a body of this many bytes may begin here. */
  takes(bodyBytes: number): boolean {
    return this.open && !this.#connection.full && this.#streams.size < maxStreams && bodyBytes <= maxOpenBytes
  }
  /** True while the link is open and its peer begins new exchanges. A link that its peer is leaving closes after its last exchange. */
  get open(): boolean {
    return !this.#leaving && !this.gone
  }
  get gone(): boolean {
    return this.#connection.closed
  }
  get size(): number {
    return this.#streams.size
  }

  exchange(line: RequestLine, body: Uint8Array | undefined, options: ExchangeOptions): Promise<Reply> {
    const id = ++this.#last
    const answer = new Answer(
      {
        resume: (bytes) => this.#resume(id, bytes),
        abort: (_error, reason) => {
          if (!this.#streams.delete(id)) return
          this.#connection.send(kinds.reset, id, Buffer.of(resetOf(reason)))
          this.#closeLeft()
        },
      },
      options,
    )
    if (answer.over) return answer.head
    this.#streams.set(id, { answer, credit: initialCredit, owed: 0 })
    const text = Buffer.from(JSON.stringify(line))
    this.#connection.send(kinds.open, id, Buffer.concat([u32(text.length), text, body ?? noBody]))
    return answer.head
  }

  close(): void {
    this.#connection.end()
  }

  /** Closes an unused link. The next exchange opens another one. */
  quiet(ms: number): void {
    this.#idleMs = this.#streams.size > 0 || this.#last !== this.#seen ? 0 : this.#idleMs + ms
    this.#seen = this.#last
    if (this.#idleMs >= idleMs) this.#connection.end()
  }

  #resume(id: number, bytes: number): void {
    const open = this.#streams.get(id)
    if (!open) return
    open.owed += bytes
    if (open.owed < initialCredit / 2) return
    this.#connection.send(kinds.credit, id, u32(open.owed))
    open.credit += open.owed
    open.owed = 0
  }

  frame(kind: number, id: number, payload: Buffer): void {
    if (kind === kinds.leave) return this.#leave(payload)
    const open = this.#streams.get(id)
    // The frame was on its way while this end left.
    if (!open) {
      if (id === 0 || id > this.#last) throw new LinkError('a frame is of no exchange')
      return
    }
    const { answer } = open
    switch (kind) {
      case kinds.head: {
        const [status, headers] = JSON.parse(payload.toString('utf8')) as [unknown, ReplyHeaders]
        if (typeof status !== 'number' || typeof headers !== 'object') throw new LinkError('a head is invalid')
        return answer.begin(status, headers)
      }
      case kinds.data:
        open.credit -= payload.length
        if (open.credit < 0) throw new LinkError('more was sent than may be')
        // A payload is part of a larger read. Unless it is taken at once it is copied, because it would keep the whole buffer in memory.
        answer.push(answer.awaited ? payload : Buffer.from(payload))
        return
      case kinds.end:
        this.#streams.delete(id)
        answer.end()
        return this.#closeLeft()
      case kinds.reset:
        this.#streams.delete(id)
        answer.fail(payload[0] === resets.refused ? new Refused() : new LinkError('the peer ended the exchange'))
        return this.#closeLeft()
      default:
        throw new LinkError('a frame is of no known kind')
    }
  }

  #leave(payload: Buffer): void {
    this.#leaving = true
    const last = payload.readUInt32BE(0)
    for (const [id, { answer }] of this.#streams) {
      if (id <= last) continue
      this.#streams.delete(id)
      answer.fail(new Refused())
    }
    this.#closeLeft()
  }

  /** This end closes the link, because it has read everything by then. The sending end cannot know that. */
  #closeLeft(): void {
    if (this.#leaving && this.#streams.size === 0) this.#connection.end()
  }

  closed(cause: Error): void {
    const streams = [...this.#streams.values()]
    this.#streams.clear()
    for (const { answer } of streams) answer.fail(cause)
  }
}

interface LinkTarget {
  readonly origin: string
  /** The path before `/link`. Empty unless the peer is served below a path. */
  readonly prefix: string
  /** The headers that authenticate the caller. */
  readonly headers: Readonly<Record<string, string>>
  readonly timeoutMs: number
  readonly lookup?: LookupFunction | undefined
  readonly times?: LinkTimes | undefined
  readonly tls?: TlsFiles | undefined
}

/** Resolves to the link, or to the status with which the peer refused it. Rejects when the peer cannot be reached. */
export function connectLink({ origin, prefix, headers, timeoutMs, lookup, times, tls }: LinkTarget) {
  return new Promise<LinkCaller | number>((resolve, reject) => {
    const asking = (origin.startsWith('https:') ? overTls : overHttp)(origin + prefix + linkPath, {
      // Use a separate connection, which is not returned to a pool for other requests.
      agent: false,
      ...tls,
      headers: { ...headers, connection: 'Upgrade', upgrade: linkProtocol, [linkHeader]: linkVersion },
      timeout: timeoutMs,
      ...(lookup ? { lookup } : {}),
    })
    asking.once('upgrade', (_response, socket, head) => {
      socket.setTimeout(0)
      socket.setNoDelay(true)
      resolve(new LinkCaller(socket, head, times))
    })
    asking.once('response', (response) => {
      response.resume()
      asking.destroy()
      resolve(response.statusCode ?? 0)
    })
    asking.once('timeout', () => asking.destroy(new Error('the link was not answered in time')))
    asking.once('error', reject)
    asking.end()
  })
}
