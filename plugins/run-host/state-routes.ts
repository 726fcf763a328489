import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import { runtimeSessionIdHeader, workerInstanceHeader } from '#contracts/wire/sidecar'
import { nothingToExport } from './errors.ts'
import type { RunHost } from './host.ts'

/** What a runner keeps of one session at most. */
const bundleLimit = 64 * 1024 * 1024

const address = {
  params: Type.Object({ sessionId: Type.String({ maxLength: 256 }) }),
  querystring: Type.Object({ runtime: Type.Optional(Type.String()) }),
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

  app.get('/state/:sessionId', { ...access('network'), schema: address }, async (request, reply) => {
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
    { ...access('network'), bodyLimit: bundleLimit, schema: address },
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

  app.delete('/state/:sessionId', { ...access('network'), schema: address }, async (request, reply) => {
    await host.forget(request.query.runtime, request.params.sessionId)
    return reply.code(204).send()
  })
}
