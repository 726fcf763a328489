import { Readable } from 'node:stream'
import { Agent } from 'undici'
import type { TSchema } from '@sinclair/typebox'
import type { Route } from '#contracts/wire/route'
import { AppError } from '../contracts/errors.ts'
import { readBody, readJson, type Reply } from './answer.ts'
import { exchange, neverConnected } from './exchange.ts'
import { connectLink, type LinkCaller, Refused } from './link/caller.ts'
import { linkHeader, linkPath, linkVersion } from './link/connection.ts'
import type {
  AnsweredTo,
  Ask,
  BytesAnswer,
  Faults,
  FileAnswer,
  LinesAnswer,
  Peer,
  Peers,
  PeersOptions,
  Signature,
} from './peer-types.ts'

interface AnyAsk {
  readonly tenant?: string
  readonly params?: Readonly<Record<string, unknown>>
  readonly query?: Readonly<Record<string, unknown>>
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  readonly signal?: AbortSignal | undefined
  readonly timeoutMs?: number
  readonly endless?: boolean
  readonly maxBytes?: number
}

const maxAnswerBytes = 8 * 1024 * 1024
/** A longer body is not read as a refusal. */
const maxRefusalBytes = 64 * 1024
/** Milliseconds. After a failed attempt, perhaps because of a proxy in between, a link is tried less and less often. */
const linkPauseMs = { first: 1_000, longest: 60_000 }
const nothing = new Uint8Array()

export function createPeers(options: PeersOptions): Peers {
  const connections = new Connections(options)
  const check = createCheck()
  const all = new Set<HttpPeer>()
  return {
    at(url) {
      const peer = new HttpPeer(url, connections, check, options)
      all.add(peer)
      return peer
    },
    async close() {
      for (const peer of all) peer.close()
      await connections.close()
    },
  }
}

/** The connections of all peers. When certificates change, existing connections end after what they carry, and new ones use the new certificates. */
class Connections {
  readonly #options: PeersOptions
  readonly #retired = new Set<Agent>()
  #agent: Agent

  constructor(options: PeersOptions) {
    this.#options = options
    this.#agent = this.#open()
    options.tls?.onChange(() => {
      const former = this.#agent
      this.#agent = this.#open()
      this.#retired.add(former)
      const over = (): unknown => this.#retired.delete(former)
      void former.close().then(over, over)
    })
  }

  get agent(): Agent {
    return this.#agent
  }
  async close(): Promise<void> {
    this.#options.tls?.close()
    await Promise.all([this.#agent, ...this.#retired].map((agent) => agent.destroy()))
  }

  #open(): Agent {
    const { connectMs, silentMs = 0, lookup, tls } = this.#options
    // The number of connections is unlimited: one open stream holds one, and a limited pool would queue a stream behind another.
    return new Agent({
      connections: null,
      pipelining: 1,
      headersTimeout: 0,
      bodyTimeout: silentMs,
      keepAliveTimeout: 30_000,
      connect: { timeout: connectMs, ...tls?.files, ...(lookup ? { lookup } : {}) },
    })
  }
}

type Check = (schema: TSchema, value: unknown) => Promise<boolean>

/** Checks answers. Unknown fields are dropped where the schema is closed, since a newer peer may send more. */
function createCheck(): Check {
  const known = new WeakMap<object, (value: unknown) => boolean>()
  const compile = import('ajv').then(({ Ajv }) => {
    // The schemas are those of our contracts: checking them would compile the schema of schemas in each process that starts.
    const trusted = { meta: false, validateSchema: false }
    const ajv = new Ajv({
      ...trusted,
      strict: false,
      validateFormats: false,
      removeAdditional: true,
      allowUnionTypes: true,
    })
    return (schema: TSchema) => ajv.compile<unknown>(schema) as (value: unknown) => boolean
  })
  return async (schema, value) => {
    let valid = known.get(schema)
    if (!valid) known.set(schema, (valid = (await compile)(schema)))
    return valid(value)
  }
}

class HttpPeer implements Peer {
  readonly #origin: string
  readonly #prefix: string
  readonly #connections: Connections
  readonly #check: Check
  readonly #options: PeersOptions
  /** The link for new exchanges. */
  #link: LinkCaller | undefined
  /** All open links. Exchanges continue on a link that its server is leaving. */
  readonly #links = new Set<LinkCaller>()
  #connecting = false
  #closed = false
  #notBefore = 0
  #pauseMs = linkPauseMs.first

  constructor(url: string, connections: Connections, check: Check, options: PeersOptions) {
    const base = new URL(url)
    this.#origin = base.origin
    this.#prefix = base.pathname.replace(/\/+$/, '')
    this.#connections = connections
    this.#check = check
    this.#options = options
  }

  get linked(): boolean {
    return this.#link?.open === true
  }

  close(): void {
    this.#closed = true
    for (const link of this.#links) link.close()
  }

  async ask<R extends Route>(route: R, asked: Ask<R>): Promise<AnsweredTo<R>> {
    const ask = asked as AnyAsk
    const body = bytesOf(route, ask)
    // An exchange without a known end must not use a connection that others share.
    const apart = route.streams === true || 'file' in route.reply
    const overLink = apart ? undefined : await this.#overLink(route, ask, body as Uint8Array | undefined)
    const reply = overLink ?? (await this.#overHttp(route, ask, body))
    return (await this.#read(route, ask, reply, overLink !== undefined)) as AnsweredTo<R>
  }

  async #read(route: Route, { maxBytes = maxAnswerBytes }: AnyAsk, reply: Reply, linked: boolean): Promise<unknown> {
    const { faults } = this.#options
    const { status, headers, body } = reply
    if (status < 200 || status > 299) {
      const said = await readJson(reply, maxRefusalBytes)
      if (status === 404 && (route.absent === true || (route.absent && said?.['error'] === route.absent)))
        return undefined
      if (status === 401 && faults.unproven) throw faults.unproven()
      throw refusal(status, said, faults)
    }
    if ('lines' in route.reply) {
      // A foreign peer may not name the type of its lines.
      if (String(headers['content-type']).startsWith('application/json')) {
        await body.return?.()
        throw faults.failed({ message: 'The answer is no stream of lines.' })
      }
      reply.splitLines()
      return linesAnswer(reply, linked)
    }
    if ('file' in route.reply) return { status, headers, body } satisfies FileAnswer
    const bytes = await readBody(body, maxBytes)
    if (!bytes) throw faults.failed({ message: `The answer is longer than ${maxBytes} bytes.`, detail: { status } })
    if ('bytes' in route.reply) return { headers, bytes } satisfies BytesAnswer
    if (!('json' in route.reply)) return true
    const json = parse(bytes)
    if (!(await this.#check(route.reply.json, json))) {
      throw faults.failed({ message: `The answer to ${route.method} ${route.path} is not what it should be.` })
    }
    return json
  }

  /** Undefined when no link accepts the exchange. Nothing was begun then. */
  async #overLink(route: Route, ask: AnyAsk, body: Uint8Array | undefined): Promise<Reply | undefined> {
    if (!this.#link?.takes(body?.length ?? 0)) return undefined
    const headers = { ...ask.headers, ...this.#unsigned(ask.tenant) }
    const line = { route: `${route.method} ${route.path}`, params: ask.params, query: ask.query, headers }
    try {
      return await this.#link.exchange(line, body, this.#how(route, ask))
    } catch (error) {
      if (error instanceof Refused) return undefined
      throw error
    }
  }

  async #overHttp(route: Route, ask: AnyAsk, body: Body | undefined): Promise<Reply> {
    const { links = true } = this.#options
    const target = this.#prefix + targetOf(route, ask)
    const isStream = body instanceof Readable
    const { headers = {} } = ask
    const signed = isStream ? nothing : (body ?? nothing)
    const request = { tenant: ask.tenant ?? '', method: route.method, target, headers, body: signed, isStream }
    const send = (signature: Signature | undefined): Promise<Reply> =>
      exchange(
        this.#connections.agent,
        {
          origin: this.#origin,
          method: route.method,
          path: target,
          headers: {
            accept: 'lines' in route.reply ? 'application/x-ndjson' : 'application/json',
            ...(route.body ? { 'content-type': 'application/json' } : {}),
            ...headers,
            ...this.#unsigned(ask.tenant),
            ...signature?.sign(request),
          },
          ...(body ? { body } : {}),
        },
        this.#how(route, ask),
      )
    // Copied, because another exchange may meanwhile discover which signature the peer knows.
    const [best, ...others] = this.#options.identity.signatures?.() ?? []
    let reply = await send(best)
    for (const signature of others) {
      // A stream that was read cannot be sent a second time: whoever streams asks for something small first.
      if (reply.status !== 401 || isStream) break
      await readBody(reply.body, maxRefusalBytes)
      reply = await send(signature)
      if (reply.status !== 401) signature.taken()
    }
    if (links && reply.headers[linkHeader] === linkVersion) this.#connect()
    return reply
  }

  #unsigned(tenant: string | undefined): Record<string, string> {
    return tenant === undefined ? {} : { [this.#options.identity.tenantHeader]: tenant }
  }

  #how(route: Route, ask: AnyAsk) {
    return {
      signal: ask.signal,
      timeoutMs: ask.endless ? undefined : (ask.timeoutMs ?? this.#options.timeoutMs),
      whole: !('lines' in route.reply || 'file' in route.reply),
      lost: (cause: Error, answered: boolean): Error =>
        cause instanceof Refused
          ? cause
          : this.#options.faults.lost({ asked: answered || !neverConnected(cause), answered, cause }),
    }
  }

  /** Connects in the background. Until the link is open everything uses HTTP. */
  #connect(): void {
    if (this.#connecting || this.#closed || this.linked || performance.now() < this.#notBefore) return
    this.#connecting = true
    void this.#open().finally(() => {
      this.#connecting = false
      this.#notBefore = performance.now() + this.#pauseMs
      this.#pauseMs = this.linked ? linkPauseMs.first : Math.min(this.#pauseMs * 2, linkPauseMs.longest)
    })
  }

  async #open(): Promise<void> {
    const { identity, connectMs, lookup, tls } = this.#options
    // The link itself is about no tenant; each exchange names its own.
    const request = {
      tenant: '',
      method: 'GET',
      target: this.#prefix + linkPath,
      headers: {},
      body: nothing,
      isStream: false,
    }
    const target = { origin: this.#origin, prefix: this.#prefix, timeoutMs: connectMs, lookup, tls: tls?.files }
    for (const signature of identity.signatures?.() ?? [undefined]) {
      const made = await connectLink({ ...target, headers: signature?.sign(request) ?? {} }).catch(() => 0)
      if (made === 401) continue
      if (typeof made === 'number') return
      if (this.#closed) return made.close()
      for (const link of this.#links) if (link.gone) this.#links.delete(link)
      this.#links.add((this.#link = made))
      return
    }
  }
}

const linesAnswer = (reply: Reply, linked: boolean): LinesAnswer => ({
  headers: reply.headers,
  lines: reply.body,
  linked,
  get complete() {
    return reply.complete
  },
  expectEnd: () => reply.expectEnd(),
})

type Body = Uint8Array | Readable

function bytesOf(route: Route, { body }: AnyAsk): Body | undefined {
  if (body === undefined) return undefined
  if (route.streams) return body instanceof Uint8Array ? body : Readable.from(body as AsyncIterable<Uint8Array>)
  return route.bytes ? (body as Uint8Array) : Buffer.from(JSON.stringify(body))
}

/** The path and query of a row, with its parameters filled in. */
function targetOf(route: Route, { params = {}, query = {} }: AnyAsk): string {
  const path = route.path
    .replace(/:([A-Za-z]+)/g, (_, name: string) => encodeURIComponent(String(params[name])))
    // A wildcard may stand for several segments.
    .replace('*', () => String(params['*']).split('/').map(encodeURIComponent).join('/'))
  const given = Object.entries(query).filter(([, value]) => value !== undefined)
  if (given.length === 0) return path
  return `${path}?${new URLSearchParams(given.map(([name, value]): [string, string] => [name, String(value)])).toString()}`
}

/** Turns a refusal into the peer's own error, or into `failed` when its form is unknown. */
function refusal(status: number, said: Record<string, unknown> | undefined, faults: Faults): AppError {
  const { error, message, retryable, request_id: _, ...detail } = said ?? {}
  if (typeof error !== 'string' || status < 400) return faults.failed({ detail: { status } })
  const sentence = typeof message === 'string' ? { message } : {}
  return new AppError(error, status, { ...sentence, retryable: retryable === true, detail })
}

function parse(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8')) as unknown
  } catch {
    return undefined
  }
}
