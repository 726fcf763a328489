import { once } from 'node:events'
import { type Duplex, duplexPair } from 'node:stream'
import type { TestContext } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import { pino } from 'pino'
import { AppError, definePlugin, errorTable } from '#kernel'
import type { Wire } from '#contracts/wire/route'
import { testKernel } from '#testing'
import { acceptLinks, createPeers, type Peer, serve, trusted } from '#kit'
import { createStreamRegistry, type StreamRegistry } from '../../http/streams.ts'
import { LinkCaller } from '../link/caller.ts'
import { linkHeader, linkProtocol, type LinkTimes, linkVersion } from '../link/connection.ts'
import { createLinkHost, type LinkHost } from '../link/host.ts'
import type { AnyCall, Answered } from '../call.ts'

const of = { access: 'network', tags: ['test'], summary: 'A test.' } as const
const json = <const S extends Parameters<typeof Type.Object>[0]>(fields: S) =>
  ({ status: 200, json: Type.Object(fields) }) as const

export const wire = {
  say: {
    ...of,
    method: 'GET',
    path: '/say/:name',
    params: Type.Object({ name: Type.String() }),
    query: Type.Object({ times: Type.Optional(Type.Integer({ minimum: 1, default: 1 })) }),
    headers: Type.Object({ 'x-tenant-id': Type.Optional(Type.String({ maxLength: 8 })) }),
    reply: json({ text: Type.String(), tenant: Type.String() }),
  },
  echo: {
    ...of,
    method: 'POST',
    path: '/echo',
    body: Type.Object({ text: Type.String() }, { additionalProperties: false }),
    bodyLimit: 4 * 1024 * 1024,
    reply: json({ length: Type.Integer() }),
  },
  small: {
    ...of,
    method: 'POST',
    path: '/small',
    body: Type.Object({ text: Type.String() }),
    bodyLimit: 100,
    reply: { status: 204 },
  },
  fail: {
    ...of,
    method: 'DELETE',
    path: '/fail/:status',
    params: Type.Object({ status: Type.Integer() }),
    reply: { status: 204 },
    absent: true,
  },
  store: {
    ...of,
    method: 'PUT',
    path: '/bytes',
    bytes: { 'application/octet-stream': Type.String({ format: 'binary' }) },
    reply: json({ length: Type.Integer(), type: Type.String() }),
  },
  load: {
    ...of,
    method: 'GET',
    path: '/bytes/:size',
    params: Type.Object({ size: Type.Integer() }),
    reply: { status: 200, bytes: { 'application/gzip': Type.String({ format: 'binary' }) }, description: 'Bytes.' },
  },
  lines: {
    ...of,
    method: 'POST',
    path: '/lines',
    body: Type.Object({ count: Type.Integer(), size: Type.Optional(Type.Integer()) }),
    reply: { status: 200, lines: Type.String(), description: 'Lines.' },
  },
  hold: { ...of, method: 'GET', path: '/hold', reply: { status: 200, lines: Type.String(), description: 'Lines.' } },
  wrong: { ...of, method: 'GET', path: '/wrong', reply: json({ text: Type.String() }) },
  secret: { ...of, access: 'member', method: 'GET', path: '/secret', reply: { status: 204 } },
} as const satisfies Wire

const { tooMuch } = errorTable('peer', { tooMuch: { status: 429, message: 'Not so much.' } })

/** What the served side has seen. */
export interface Seen {
  /** Lines that were taken from the source of `lines`. */
  pulled: number
  /** Why each `hold` ended. */
  readonly ended: unknown[]
  holding: number
}

export async function* manyLines(count: number, size: number, seen: Seen): AsyncGenerator<Buffer> {
  for (let i = 0; i < count; i++) {
    seen.pulled++
    yield Buffer.from(`${String(i).padEnd(size, '.')}\n`)
    if (i % 64 === 63) await turn()
  }
}

/** Says one line, then nothing until it is to end, and then why. */
export async function* held(signal: AbortSignal, seen: Seen): AsyncGenerator<Buffer> {
  seen.holding++
  try {
    yield Buffer.from('first\n')
    if (!signal.aborted) await once(signal, 'abort')
    yield Buffer.from(`${String(signal.reason)}\n`)
  } finally {
    seen.holding--
    seen.ended.push(signal.reason)
  }
}

/** A listener that serves the test's wire over HTTP and links. `drain`: what it waits for before it closes. */
export async function servedWire(t: TestContext, drain: () => Promise<void> = async () => {}) {
  const seen: Seen = { pulled: 0, ended: [], holding: 0 }
  const plugin = definePlugin({
    name: 'served',
    async setup({ routes, beforeClose }) {
      beforeClose('conductor', drain)
      routes('conductor', async (app) => {
        acceptLinks(app, trusted)
        serve(app, wire.say, ({ params, query, headers }) => ({
          json: { text: params.name.repeat(query.times!), tenant: headers['x-tenant-id'] ?? '' },
        }))
        serve(app, wire.echo, ({ body }) => ({ json: { length: body.text.length } }))
        serve(app, wire.small, () => {})
        serve(app, wire.fail, ({ params: { status } }) => {
          if (status === 429) throw tooMuch({ detail: { most: 3 } })
          if (status === 503) throw new AppError('not_now', 503, { retryable: true })
          throw new AppError('failed', status)
        })
        serve(app, wire.store, ({ body, headers }) => ({
          json: { length: body.length, type: String(headers['content-type']) },
        }))
        serve(app, wire.load, ({ params }) => ({
          bytes: Buffer.alloc(params.size, 7),
          type: 'application/gzip',
          headers: { 'x-size': String(params.size) },
        }))
        serve(app, wire.lines, ({ body }) => ({ lines: manyLines(body.count, body.size ?? 10, seen) }))
        serve(app, wire.hold, ({ signal }) => ({ lines: held(signal, seen) }))
        serve(app, wire.wrong, () => ({ json: { other: 1 } as unknown as { text: string } }))
        serve(app, wire.secret, () => {})
      })
      return {}
    },
  })
  const kernel = await testKernel(t, [plugin], { listeners: ['conductor'], listen: true })
  let connections = 0
  kernel.listeners['conductor']!.server.on('connection', () => connections++)
  return {
    kernel,
    seen,
    url: kernel.urls['conductor']!,
    get connections() {
      return connections
    },
  }
}

export const until = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await turn()
}

/** A peer that asks over HTTP alone, or over a link that it has already. */
export async function peerOf(t: TestContext, url: string, links: boolean): Promise<Peer> {
  const peers = createPeers({
    links,
    connectMs: 2_000,
    timeoutMs: 10_000,
    identity: { tenantHeader: 'x-tenant-id' },
    faults: {
      lost: ({ asked, answered, cause }) => new AppError('lost', 502, { detail: { asked, answered }, cause }),
      failed: (options) => new AppError('bad_answer', 502, options),
    },
  })
  t.after(() => peers.close())
  const peer = peers.at(url)
  if (links) {
    await peer.ask(wire.say, { params: { name: 'a' } })
    await until(() => peer.linked)
  }
  return peer
}

/** Both ends of a link without a network. */
export async function linkOf(routes: Readonly<Record<string, (call: AnyCall) => Answered>>, times?: LinkTimes) {
  const [near, far] = duplexPair() as [Duplex, Duplex]
  const streams = createStreamRegistry()
  const host = hostOf(routes, streams, times)
  host.upgrade(request, far, Buffer.alloc(0))
  // The answer to the upgrade; a caller is given what comes after it.
  await once(near, 'readable')
  near.read()
  return { near, far, host, streams, caller: (own = times) => new LinkCaller(near, Buffer.alloc(0), own) }
}

const request = {
  method: 'GET',
  url: '/link',
  headers: { upgrade: linkProtocol, [linkHeader]: linkVersion },
} as never

function hostOf(
  routes: Readonly<Record<string, (call: AnyCall) => Answered>>,
  streams: StreamRegistry,
  times?: LinkTimes,
): LinkHost {
  const host = createLinkHost({
    log: pino({ level: 'silent' }),
    streams,
    compile: () => () => true,
    parse: (json) => JSON.parse(json.toString()) as unknown,
    logRequests: false,
    bodyLimit: 1024,
    prove: async () => {},
  })
  host.accept(trusted, times)
  for (const [path, handler] of Object.entries(routes)) {
    const route = { ...of, method: 'GET', path, reply: wire.hold.reply } as const
    host.add({ route, handle: async (call) => handler(call) })
  }
  return host
}

export const textOf = async (chunks: AsyncIterable<Buffer>): Promise<string> => {
  let text = ''
  for await (const chunk of chunks) text += chunk.toString()
  return text
}
