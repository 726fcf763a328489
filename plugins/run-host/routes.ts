import { type App, appError } from '#kernel'
import {
  runtimeSessionIdHeader,
  sidecarWire,
  workerInflightHeader,
  workerInstanceHeader,
} from '#contracts/wire/sidecar'
import { acceptLinks, serve, trusted } from '#kit'
import type { RunHost } from './host.ts'

const nothingToExport = appError('not_found', 404, 'This session has no state here.')

/** The sidecar's API. Specification 4.23. */
export function sidecarRoutes(app: App, host: RunHost): void {
  app.addHook('onRequest', async (_request, reply) => {
    void reply.header(workerInstanceHeader, host.instance)
  })
  acceptLinks(app, trusted)

  for (const route of [sidecarWire.health, sidecarWire.healthz]) {
    serve(app, route, () => {
      const { runtimes, missing, ...more } = host.health()
      return { json: { ...more, runtimes: [...runtimes], ...(missing ? { missing } : {}) } }
    })
  }

  serve(app, sidecarWire.run, ({ body, signal }) => {
    host.refuseWhenStopping(body)
    const start = host.accept(body)
    return { headers: { [workerInflightHeader]: String(host.inflight) }, lines: start(signal) }
  })

  serve(app, sidecarWire.exportState, async ({ params, query }) => {
    const bundle = await host.exportState(query.runtime, params.sessionId)
    if (!bundle) throw nothingToExport()
    const headers = { [runtimeSessionIdHeader]: bundle.runtimeSessionId ?? '' }
    return { headers, bytes: bundle.bytes, type: bundle.contentType }
  })

  serve(app, sidecarWire.hydrate, async ({ params, query, headers, body }) => {
    const seeded = headers[runtimeSessionIdHeader]
    await host.hydrate(query.runtime, params.sessionId, {
      bytes: body ?? Buffer.alloc(0),
      contentType: String(headers['content-type'] ?? 'application/octet-stream'),
      ...(typeof seeded === 'string' && seeded !== '' ? { runtimeSessionId: seeded } : {}),
    })
  })

  serve(app, sidecarWire.forget, ({ params, query }) => host.forget(query.runtime, params.sessionId))
}
