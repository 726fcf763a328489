import { access, type App, ndjson } from '#kernel'
import { maxReplayBytes } from '#contracts/replay'
import { RunEnvelope } from '#contracts/run-envelope'
import { workerInflightHeader, workerInstanceHeader } from '#contracts/wire/sidecar'
import type { RunHost } from './host.ts'

/** A prompt of 1,000,000 characters and instructions of 200,000, at up to 6 bytes each in JSON, and what was finished before. */
const envelopeLimit = 8 * 1024 * 1024 + maxReplayBytes

export function healthRoutes(app: App, host: RunHost): void {
  for (const url of ['/health', '/healthz']) {
    app.get(url, access('public'), async (_request, reply) => {
      void reply.header(workerInstanceHeader, host.instance)
      return host.health()
    })
  }
}

export function runRoutes(app: App, host: RunHost): void {
  app.post(
    '/run',
    { ...access('network'), bodyLimit: envelopeLimit, schema: { body: RunEnvelope } },
    (request, reply) => {
      const start = host.accept(request.body)
      void reply.header(workerInstanceHeader, host.instance).header(workerInflightHeader, host.inflight)
      return ndjson(request, reply, start)
    },
  )
}
