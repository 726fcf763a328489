import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { type AddressInfo, type Socket } from 'node:net'
import type { TestContext } from 'node:test'
import { AppError, definePlugin, isAppError, notFound } from '#kernel'
import { testKernel, testProfile } from '#testing'
import { acceptLinks, awaitFirstChunk, serve as serveRow, trusted } from '#kit'
import type { RunEnvelope } from '#contracts/run-envelope'
import { createEventEncoder } from '#contracts/run-event'
import type { StateBundle } from '#contracts/runtime'
import type { SidecarLink } from '#contracts/sidecar'
import { runtimeSessionIdHeader, sidecarWire } from '#contracts/wire/sidecar'

export interface FakeSidecar extends SidecarLink {
  /** Runs under way now. */
  readonly running: Set<string>
  readonly states: Map<string, StateBundle>
}

/** A sidecar that does what the prompt says: `hang` until aborted, `refuse`, or a number of deltas. */
export function createFakeSidecar(): FakeSidecar {
  const running = new Set<string>()
  const states = new Map<string, StateBundle>()
  return {
    running,
    states,
    health: async () => ({
      ok: true,
      runtime: 'all',
      runtimes: ['general', 'runtime_a'],
      instance: 'i-1',
      inflight: running.size,
    }),
    async *run(envelope, signal) {
      if (envelope.prompt === 'refuse') throw new AppError('sidecar_full', 429, { message: 'Too many runs.' })
      const events = createEventEncoder(envelope.runId, envelope.sessionId, envelope.firstSeq)
      running.add(envelope.runId)
      try {
        yield Buffer.from(events.line({ type: 'progress', stage: 'started' }))
        if (envelope.prompt === 'hang') {
          if (!signal.aborted) await once(signal, 'abort')
          return
        }
        const deltas = Number(envelope.prompt)
        for (let i = 0; i < deltas; i++) {
          yield Buffer.from(events.line({ type: 'assistant', text: `${i} äöü `, delta: true }))
        }
        yield Buffer.from(events.line({ type: 'result', text: 'done', finishReason: 'stop' }))
      } finally {
        running.delete(envelope.runId)
      }
    },
    exportState: async (runtime, sessionId) => states.get(`${runtime}/${sessionId}`),
    async hydrate(runtime, sessionId, bundle) {
      if (Buffer.from(bundle.bytes).toString() === 'corrupt') {
        throw new AppError('corrupt_state', 400, { message: 'The bundle cannot be read.' })
      }
      states.set(`${runtime}/${sessionId}`, bundle)
    },
    async forget(runtime, sessionId) {
      states.delete(`${runtime}/${sessionId}`)
    },
  }
}

export interface ServedSidecar {
  readonly url: string
  readonly server: Server
  readonly sockets: Set<Socket>
}

/** Serves a fake over HTTP, as a sidecar process does. */
export async function serve(t: Pick<TestContext, 'after'>, sidecar: SidecarLink): Promise<ServedSidecar> {
  const sockets = new Set<Socket>()
  const server = createServer(async (request, response) => {
    const url = new URL(request.url!, 'http://sidecar')
    const gone = new AbortController()
    response.once('close', () => gone.abort())
    const parts: Buffer[] = []
    for await (const part of request) parts.push(part as Buffer)
    const body = Buffer.concat(parts)
    try {
      await answer(url, body)
    } catch (error) {
      if (response.headersSent) return void response.destroy()
      const known = isAppError(error) ? error : new AppError('internal', 500)
      response.writeHead(known.status).end(JSON.stringify({ error: known.code, message: known.sentence }))
    }

    async function answer({ pathname, searchParams }: URL, bytes: Buffer): Promise<void> {
      if (pathname === '/base/health') return void response.end(JSON.stringify(await sidecar.health()))
      if (pathname === '/base/run') {
        const chunks = sidecar.run(JSON.parse(bytes.toString()) as RunEnvelope, gone.signal)
        for await (const chunk of chunks) response.write(chunk)
        return void response.end()
      }
      const sessionId = decodeURIComponent(pathname.slice('/base/state/'.length))
      const runtime = searchParams.get('runtime')!
      if (request.method === 'POST') {
        const handle = request.headers['x-runtime-session-id']
        await sidecar.hydrate(runtime, sessionId, {
          bytes,
          contentType: request.headers['content-type']!,
          ...(typeof handle === 'string' ? { runtimeSessionId: handle } : {}),
        })
        return void response.writeHead(204).end()
      }
      if (request.method === 'DELETE') {
        await sidecar.forget(runtime, sessionId)
        return void response.writeHead(204).end()
      }
      const state = await sidecar.exportState(runtime, sessionId)
      if (!state) return void response.writeHead(404).end('{"error":"not_found"}')
      const handle = state.runtimeSessionId
      response.writeHead(200, {
        'content-type': state.contentType,
        ...(handle === undefined ? {} : { 'x-runtime-session-id': handle }),
      })
      response.end(state.bytes)
    }
  })
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    return new Promise((resolve) => server.close(resolve))
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/base`, server, sockets }
}

/** Serves a fake as a sidecar of ours does, with links. */
export async function serveLinked(
  t: TestContext,
  sidecar: SidecarLink,
): Promise<{ url: string; requests: () => number }> {
  const plugin = definePlugin({
    name: 'served-sidecar',
    async setup({ routes }) {
      routes('sidecar', async (app) => {
        acceptLinks(app, trusted)
        serveRow(app, sidecarWire.health, async () => {
          const { ok, runtime, runtimes, instance, inflight } = await sidecar.health()
          return { json: { ok, runtime, runtimes: [...runtimes], instance, inflight } }
        })
        serveRow(app, sidecarWire.run, async ({ body, signal }) => ({
          lines: await awaitFirstChunk(sidecar.run(body, signal)),
        }))
        serveRow(app, sidecarWire.exportState, async ({ params, query }) => {
          const state = await sidecar.exportState(query.runtime!, params.sessionId)
          if (!state) throw notFound()
          const headers = { [runtimeSessionIdHeader]: state.runtimeSessionId ?? '' }
          return { bytes: state.bytes, type: state.contentType, headers }
        })
        serveRow(app, sidecarWire.hydrate, ({ params, query, headers, body }) =>
          sidecar.hydrate(query.runtime!, params.sessionId, {
            bytes: body,
            contentType: String(headers['content-type']),
            runtimeSessionId: String(headers[runtimeSessionIdHeader]),
          }),
        )
        serveRow(app, sidecarWire.forget, ({ params, query }) => sidecar.forget(query.runtime!, params.sessionId))
      })
      return {}
    },
  })
  const kernel = await testKernel(t, [plugin], { listeners: ['sidecar'], listen: true })
  let requests = 0
  kernel.listeners['sidecar']!.server.on('request', () => requests++)
  return { url: kernel.urls['sidecar']!, requests: () => requests }
}

export const envelope = (runId: string, prompt: string): RunEnvelope => ({
  runId,
  sessionId: 'sess-00000000-00000000',
  tenantId: 'acme',
  profile: testProfile('p'),
  prompt,
  firstSeq: 2,
  timeoutMs: 60_000,
})
