import { Type } from '@sinclair/typebox'
import { access, type App, failure, jsonLines, ndjson } from '#kernel'
import { maxReplayBytes } from '#contracts/replay'
import { RunEnvelope } from '#contracts/run-envelope'
import type { SidecarHealth } from '#contracts/sidecar'
import { workerInflightHeader, workerInstanceHeader } from '#contracts/wire/sidecar'
import type { RunHost } from './host.ts'

/** A prompt of 1,000,000 characters and instructions of 200,000, at up to 6 bytes each in JSON, attachments, and what was finished before. */
const envelopeLimit = 16 * 1024 * 1024 + maxReplayBytes

const Health = Type.Unsafe<SidecarHealth>(
  Type.Object(
    {
      ok: Type.Boolean(),
      runtime: Type.String({ description: "A runtime's name, or `all`." }),
      runtimes: Type.Array(Type.String()),
      missing: Type.Optional(
        Type.Record(Type.String(), Type.String(), {
          description: 'Runtimes that are not offered, each with a sentence that says what it needs.',
        }),
      ),
      instance: Type.String(),
      inflight: Type.Integer({ description: 'Runs under way.' }),
    },
    { additionalProperties: true },
  ),
)

export function healthRoutes(app: App, host: RunHost): void {
  const schema = {
    tags: ['health'],
    summary: 'Say that the process lives, and what it runs',
    description: 'The header `X-Agent-Orc-Worker-Instance` names the process; another one means that it was restarted.',
    response: { 200: Health },
  }
  for (const url of ['/health', '/healthz']) {
    app.get(url, { ...access('public'), schema }, async (_request, reply) => {
      void reply.header(workerInstanceHeader, host.instance)
      return host.health()
    })
  }
}

export function runRoutes(app: App, host: RunHost): void {
  app.post(
    '/run',
    {
      ...access('network'),
      bodyLimit: envelopeLimit,
      schema: {
        tags: ['runs'],
        summary: 'Execute a run',
        description:
          'Closing the connection ends the run. The headers name the process and how many runs it has under way.',
        body: RunEnvelope,
        response: {
          200: jsonLines('RunEvents, one a line; the last one is `result` or `error`.'),
          400: failure('`invalid_request`, `invalid session id` or `unknown_runtime`.'),
          409: failure('`session_busy`, or `session_state_missing`: hydrate the session first.'),
        },
      },
    },
    (request, reply) => {
      const start = host.accept(request.body)
      void reply.header(workerInstanceHeader, host.instance).header(workerInflightHeader, host.inflight)
      return ndjson(request, reply, start)
    },
  )
}
