import type { IncomingHttpHeaders } from 'node:http'
import { Type } from '@sinclair/typebox'
import { access, type App, failures, httpErrors, negotiated, NoContent } from '#kernel'
import type { StateBundle } from '#contracts/runtime'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'
import { maxStateBytes, stateRevHeader } from '#contracts/wire/worker'
import type { NewestOfAll, WorkerAuth } from './auth.ts'
import { refusals, SessionParams, tags } from './routes.ts'
import { sandboxErrors } from '../errors.ts'

const url = '/runner/worker/:id/state'
const bytes = Type.String({ format: 'binary' })
const bundleForms = { 'application/json': Type.Unknown(), 'application/gzip': bytes, 'application/octet-stream': bytes }
const rev = { minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Counts the copies of this state.' }
const PutHeaders = Type.Object({
  [stateRevHeader]: Type.Integer(rev),
  [runtimeSessionIdHeader]: Type.Optional(Type.String({ maxLength: 1024 })),
})
const DeleteHeaders = Type.Object({ [stateRevHeader]: Type.Integer({ ...rev, default: 0 }) })

/** The runner's copy of a worker's state. Mount it in a scope of its own: a body is bytes here, whatever its content type says. */
export const stateRoutes =
  (auth: WorkerAuth, { uploads, downloads }: NewestOfAll) =>
  async (app: App) => {
    takeBytes(app)
    app.get(
      url,
      {
        ...access('worker'),
        exposeHeadRoute: false,
        schema: {
          tags,
          summary: "Read the runner's copy of the state",
          description: '`X-Agent-Orc-State-Rev` and `X-Runtime-Session-Id` belong to it.',
          params: SessionParams,
          response: {
            200: negotiated('The bundle, in the form of its runtime.', bundleForms),
            ...failures(...refusals, sandboxErrors.noState),
          },
        },
      },
      async (request, reply) => {
        const { worker } = auth.of(request)
        const { state, stateRev } = worker
        // The worker has to count on from this revision, or its first copy would seem older than the deletion.
        if (!state) throw sandboxErrors.noState({ headers: { [stateRevHeader]: String(stateRev) } })
        downloads.begin(worker, reply)
        if (state.runtimeSessionId !== undefined) void reply.header(runtimeSessionIdHeader, state.runtimeSessionId)
        return reply
          .header(stateRevHeader, stateRev)
          .type(state.contentType)
          .send(Buffer.from(state.bytes.buffer, state.bytes.byteOffset, state.bytes.byteLength))
      },
    )

    app.put(
      url,
      {
        ...access('worker'),
        bodyLimit: maxStateBytes,
        onRequest: async (request, reply) => uploads.begin(auth.of(request).worker, reply),
        schema: {
          tags,
          summary: 'Give the runner a copy of the state',
          description:
            'An older copy, by `X-Agent-Orc-State-Rev`, changes nothing. The connection of one that is still on its way is closed.',
          consumes: Object.keys(bundleForms),
          params: SessionParams,
          headers: PutHeaders,
          body: Type.Unknown({ description: 'A bundle.' }),
          response: { 204: NoContent, ...failures(...refusals, httpErrors.bodyTooLarge) },
        },
      },
      async (request, reply) => {
        auth.of(request).worker.takeState(bundleOf(request), request.headers[stateRevHeader])
        return reply.code(204).send()
      },
    )

    app.delete(
      url,
      {
        ...access('worker'),
        schema: {
          tags,
          summary: 'Say that there is no state',
          description: 'The answer to `export_state` of a worker that has none. A newer copy stays.',
          params: SessionParams,
          headers: DeleteHeaders,
          response: { 204: NoContent, ...failures(...refusals) },
        },
      },
      async (request, reply) => {
        auth.of(request).worker.takeState(undefined, request.headers[stateRevHeader])
        return reply.code(204).send()
      },
    )
  }

function takeBytes(app: App): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser(
    '*',
    { parseAs: 'buffer', bodyLimit: maxStateBytes },
    async (_request: unknown, body: Buffer) => body,
  )
}

function bundleOf({ headers, body }: { readonly headers: IncomingHttpHeaders; readonly body: unknown }): StateBundle {
  const { [runtimeSessionIdHeader]: handle = '', 'content-type': contentType = 'application/octet-stream' } = headers
  const bytes = (body as Buffer | undefined) ?? Buffer.alloc(0)
  return { bytes, contentType, ...(handle === '' ? {} : { runtimeSessionId: String(handle) }) }
}
