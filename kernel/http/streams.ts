import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Server as TlsServer } from 'node:tls'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import fp from 'fastify-plugin'

/** Bytes of one or more whole frames (SSE) or lines (NDJSON). */
export type Chunk = string | Uint8Array
type Source = (signal: AbortSignal) => AsyncIterable<Chunk>

/** Why a stream's signal aborted: its client left, this server is stopping, or its client's key is no longer one. */
export type StreamEnd = 'client_gone' | 'shutdown' | 'revoked'

/** Milliseconds. A reader that stays unwritable for longer is dropped, because it must not hold memory for ever. */
const unwritableMs = 30_000
/** Milliseconds that the headers of a stream wait for its first bytes. */
const headersMs = 100
/** Milliseconds that streams get to write their last frame: when the server stops, and when their key is revoked. */
const drainMs = { shutdown: 5_000, revoked: 500 } as const
/** SSE comment that keeps proxies from closing an idle stream. */
export const ping = ': ping\n\n'

export interface OpenStream {
  /** Absent for an exchange on a link. */
  readonly request?: FastifyRequest
  readonly abort: AbortController
  /** `destroy` cuts the stream; `write` is only called for heartbeats. */
  readonly raw: { destroy(): unknown; write(chunk: Chunk): unknown }
  readonly heartbeat: string | undefined
  readonly heartbeatMs: number
  lastWrite: number
  /** The time since which the socket refuses more bytes. Undefined while it accepts them. */
  blockedSince: number | undefined
  done: Promise<void>
}

interface Open extends OpenStream {
  readonly raw: ServerResponse
}

/** The open streams of one listener: a single timer for heartbeats and slow readers, and an orderly end on shutdown. */
export interface StreamRegistry {
  readonly size: number
  /** True once `end` was called. No new stream may outlive it. */
  readonly ending: boolean
  add(stream: OpenStream): () => void
  all(): Iterable<OpenStream>
  revoke(stream: OpenStream): void
  end(): Promise<void>
}

const registryKey = Symbol('agent-orc.streams')
export const streamsOf = (app: FastifyInstance): StreamRegistry => app.getDecorator<StreamRegistry>(registryKey)

/** Prepares a listener for `stream`. close() waits for open responses, so streams are ended first, each with its own last bytes. */
export const openStreams = fp(
  async (app) => {
    const streams = createStreamRegistry()
    app.decorate(registryKey, streams)
    app.addHook('preClose', () => streams.end())
  },
  { name: 'agent-orc-streams' },
)

/** Calls `act` once, when the response is over. The client may have left before: `close` was emitted then and does not come again. */
export function onceClosed(raw: ServerResponse, act: () => void): void {
  if (raw.destroyed) act()
  else raw.once('close', act)
}

/**
 * When the listener closes, ends connections without a request: idle keep-alive connections, and those that never sent a complete request, which
 * Node counts as busy for up to 72 s. Keeps in `connections` those that speak HTTP.
 */
export const quietConnections = fp<{ readonly connections: Set<Socket> }>(
  async (app, { connections }) => {
    const { server } = app
    const quiet = new Set<Socket>()
    const forget = (socket: Socket): void => {
      quiet.delete(socket)
      connections.delete(socket)
    }
    const add = (socket: Socket): void => {
      quiet.add(socket)
      connections.add(socket)
      socket.once('close', () => forget(socket))
    }
    // Below TLS there are other sockets, which end with these.
    server.on((server as unknown) instanceof TlsServer ? 'secureConnection' : 'connection', add)
    // The new owner of an upgraded connection ends it.
    server.on('upgrade', ({ socket }) => forget(socket))
    server.on('request', ({ socket }, response) => {
      quiet.delete(socket)
      response.once('close', () => {
        if (!socket.destroyed) quiet.add(socket)
      })
    })
    const endAll = (): void => quiet.forEach((socket) => socket.destroy())
    app.addHook('preClose', async () => {
      endAll()
      const sweep = setInterval(endAll, 50)
      server.once('close', () => clearInterval(sweep))
      if (!server.listening) clearInterval(sweep)
    })
  },
  { name: 'agent-orc-connections' },
)

export function createStreamRegistry(): StreamRegistry {
  const open = new Set<OpenStream>()
  let wheel: NodeJS.Timeout | undefined
  let ending = false
  const turn = (): void => {
    const now = Date.now()
    for (const s of open) {
      if (s.blockedSince !== undefined) {
        if (now - s.blockedSince > unwritableMs) s.raw.destroy()
      } else if (s.heartbeat !== undefined && now - s.lastWrite >= s.heartbeatMs) {
        s.lastWrite = now
        s.raw.write(s.heartbeat)
      }
    }
  }
  const finish = (s: OpenStream, why: keyof typeof drainMs): NodeJS.Timeout => {
    s.abort.abort(why satisfies StreamEnd)
    return setTimeout(() => s.raw.destroy(), drainMs[why])
  }
  return {
    get size() {
      return open.size
    },
    get ending() {
      return ending
    },
    add(stream) {
      open.add(stream)
      wheel ??= setInterval(turn, 1_000).unref()
      // The request was under way when `end` was called, so its stream is ended like those that were already open.
      const late = ending ? finish(stream, 'shutdown') : undefined
      return () => {
        clearTimeout(late)
        open.delete(stream)
        if (open.size === 0) {
          clearInterval(wheel)
          wheel = undefined
        }
      }
    },
    all: () => open,
    revoke(stream) {
      const late = finish(stream, 'revoked')
      void stream.done.finally(() => clearTimeout(late))
    },
    async end() {
      ending = true
      await Promise.all(
        [...open].map(async (s) => {
          const late = finish(s, 'shutdown')
          await s.done
          clearTimeout(late)
        }),
      )
    },
  }
}

export interface StreamOptions {
  readonly contentType: string
  readonly status?: number
  readonly headers?: Readonly<Record<string, string>>
  /** Written when nothing else was for `heartbeatMs` (15 s by default). */
  readonly heartbeat?: string
  readonly heartbeatMs?: number
  /** The controller of the source's signal, for an owner that needed the signal before the stream began. */
  readonly abort?: AbortController
}

/**
 * Answers with a stream. `source` gets a signal that aborts when the client leaves or the server stops (its reason is a
 * `StreamEnd`); on shutdown it may still yield its terminal bytes. Back-pressure: the source is not pulled while the
 * socket is full. Headers already set on the reply (CORS, request id) are kept. Nobody else touches `reply.raw`.
 */
export function stream(
  request: FastifyRequest,
  reply: FastifyReply,
  options: StreamOptions,
  source: Source,
): Promise<void> {
  const registry = streamsOf(reply.server)
  const raw = reply.raw
  reply.hijack()
  const headers = {
    ...(reply.getHeaders() as Record<string, string>),
    'content-type': options.contentType,
    'cache-control': 'no-store',
    'x-accel-buffering': 'no',
    ...options.headers,
  }
  const status = options.status ?? 200
  if (request.method === 'HEAD') {
    // HEAD has no body, so the source is not followed to its end.
    raw.writeHead(status, headers).end()
    return Promise.resolve()
  }
  const open: Open = {
    request,
    abort: options.abort ?? new AbortController(),
    raw,
    heartbeat: options.heartbeat,
    heartbeatMs: options.heartbeatMs ?? 15_000,
    lastWrite: Date.now(),
    blockedSince: undefined,
    done: Promise.resolve(),
  }
  const gone = (): void => {
    if (!raw.writableFinished) open.abort.abort('client_gone' satisfies StreamEnd)
  }
  onceClosed(raw, gone)
  raw.writeHead(status, headers)
  // Headers leave together with the first bytes if those come soon, because each write costs a system call.
  const alone = setTimeout(() => raw.flushHeaders(), headersMs)
  const remove = registry.add(open)
  open.done = pump(open, source)
    .catch((err: unknown) => {
      if (!open.abort.signal.aborted) request.log.error({ err, request_id: request.id }, 'stream failed')
      // Bytes written in this turn of the event loop have not been sent yet, so destroy the socket in the next turn.
      setImmediate(() => raw.destroy())
    })
    .finally(() => {
      clearTimeout(alone)
      remove()
    })
  return open.done
}

async function pump(open: Open, source: Source): Promise<void> {
  const { raw, abort } = open
  const chunks = source(abort.signal)[Symbol.asyncIterator]()
  const pass = async ({ done, value }: IteratorResult<Chunk>): Promise<boolean> => {
    if (done || raw.destroyed) return false
    open.lastWrite = Date.now()
    if (raw.write(value)) return true
    open.blockedSince = open.lastWrite
    await drained(raw)
    open.blockedSince = undefined
    return true
  }
  // A loop over the chunks themselves would hold the last one, however large, until there is another.
  while (await chunks.next().then(pass));
  await chunks.return?.()
  await new Promise<void>((resolve) => {
    if (raw.destroyed) resolve()
    else raw.once('close', resolve).end(resolve)
  })
}

// A client that disconnects emits 'close' and never 'drain'. Shutdown does not end the wait, because a full socket cannot take a last frame.
const drained = (raw: ServerResponse): Promise<void> =>
  new Promise((resolve) => {
    const done = (): void => {
      raw.off('drain', done).off('close', done)
      resolve()
    }
    raw.on('drain', done).on('close', done)
  })

type Streamed = (
  request: FastifyRequest,
  reply: FastifyReply,
  source: Source,
  options?: Partial<StreamOptions>,
) => Promise<void>
/** Server-Sent Events: `source` yields whole frames made with `sseFrame`. */
export const sse: Streamed = (request, reply, source, options) =>
  stream(request, reply, { contentType: 'text/event-stream', heartbeat: ping, ...options }, source)
/** Newline-delimited JSON: `source` yields whole lines. */
export const ndjson: Streamed = (request, reply, source, options) =>
  stream(request, reply, { contentType: 'application/x-ndjson', ...options }, source)
