import { Type } from '@sinclair/typebox'
import { access, type App, failure, negotiated, NoContent } from '#kernel'
import { runtimeSessionIdHeader, workerInstanceHeader } from '#contracts/wire/sidecar'
import { nothingToExport } from './errors.ts'
import type { RunHost } from './host.ts'

/** What a runner keeps of one session at most. */
const bundleLimit = 64 * 1024 * 1024

const bytes = Type.String({ format: 'binary' })
const bundleForms = { 'application/json': Type.Unknown(), 'application/gzip': bytes, 'application/octet-stream': bytes }

const tags = ['sessions']
const address = {
  params: Type.Object({ sessionId: Type.String({ maxLength: 256 }) }),
  querystring: Type.Object({
    runtime: Type.Optional(Type.String({ description: 'Needed where the sidecar serves more than one.' })),
  }),
}

/** In a scope of their own: here a body is bytes, whatever its content type says. */
export const stateRoutes = (host: RunHost) => async (app: App) => {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser(
    '*',
    { parseAs: 'buffer', bodyLimit: bundleLimit },
    async (_request: unknown, body: Buffer) => body,
  )
  app.addHook('onRequest', async (_request, reply) => {
    void reply.header(workerInstanceHeader, host.instance)
  })

  const exporting = {
    tags,
    summary: 'Export the state of a session',
    description: 'Opaque to everybody but the runtime. The header `X-Runtime-Session-Id` belongs to it.',
    ...address,
    response: {
      200: negotiated('The bundle, in the form of its runtime.', bundleForms),
      404: failure('`not_found`: the session has no state here.'),
    },
  }
  app.get('/state/:sessionId', { ...access('network'), schema: exporting }, async (request, reply) => {
    const { sessionId } = request.params
    const bundle = await host.exportState(request.query.runtime, sessionId)
    if (!bundle) throw nothingToExport()
    return reply
      .header(runtimeSessionIdHeader, bundle.runtimeSessionId ?? '')
      .type(bundle.contentType)
      .send(Buffer.from(bundle.bytes.buffer, bundle.bytes.byteOffset, bundle.bytes.byteLength))
  })

  app.post(
    '/state/:sessionId',
    {
      ...access('network'),
      bodyLimit: bundleLimit,
      schema: {
        tags,
        summary: 'Hydrate a session',
        description: 'The body is a bundle as it was exported, with its `Content-Type` and `X-Runtime-Session-Id`.',
        consumes: Object.keys(bundleForms),
        ...address,
        body: Type.Unknown({ description: 'A bundle.' }),
        response: { 204: NoContent, 400: failure('`invalid_state`: the bundle is empty or cannot be read.') },
      },
    },
    async (request, reply) => {
      const seeded = request.headers[runtimeSessionIdHeader]
      await host.hydrate(request.query.runtime, request.params.sessionId, {
        bytes: (request.body as Buffer | undefined) ?? Buffer.alloc(0),
        contentType: request.headers['content-type'] ?? 'application/octet-stream',
        ...(typeof seeded === 'string' && seeded !== '' ? { runtimeSessionId: seeded } : {}),
      })
      return reply.code(204).send()
    },
  )

  const forgetting = {
    tags,
    summary: 'Forget a session',
    description: 'Frees its memory. An unknown session is no error.',
    ...address,
    response: { 204: NoContent },
  }
  app.delete('/state/:sessionId', { ...access('network'), schema: forgetting }, async (request, reply) => {
    await host.forget(request.query.runtime, request.params.sessionId)
    return reply.code(204).send()
  })
}
