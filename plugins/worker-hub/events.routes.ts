import { Type } from '@sinclair/typebox'
import { type App, type AppError, failure, NoContent, uploadAccess } from '#kernel'
import { type Door } from './door.ts'
import { listenerStopping, workerLost } from './errors.ts'
import { refusals, SessionParams, tags } from './schema.ts'
import { receive, type UploadLimits } from './upload.ts'

/** In a scope of their own: here a body is a stream, whatever its content type says. */
export const eventRoutes = (door: Door, limits: UploadLimits, closing: AbortSignal) => async (app: App) => {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request: unknown, body: unknown, done: (error: null, body: unknown) => void) =>
    done(null, body),
  )
  app.post(
    '/runner/worker/:id/events',
    {
      ...uploadAccess('worker'),
      schema: {
        tags,
        summary: 'Send the events of a run',
        description:
          'RunEvents, one a line, sent as they happen; the last one is `result` or `error`. A connection that is cut ends the run.',
        consumes: ['application/x-ndjson'],
        params: SessionParams,
        querystring: Type.Object({ runId: Type.String({ maxLength: 128 }) }),
        body: Type.Unknown({ description: 'Lines of JSON.' }),
        response: {
          204: NoContent,
          400: failure('`invalid_events`: a line is too long; or `invalid_request`.'),
          ...refusals,
          404: failure('`unknown_run`: it is over, was cancelled, or its events are taken already.'),
          408: failure('`event_upload_timeout`: it took longer than 4 hours.'),
          413: failure('`event_upload_too_large`: more than 256 MiB.'),
        },
      },
    },
    async (request, reply) => {
      const { worker } = door.of(request)
      const upload = receive(request.raw, limits, worker.seen)
      const stop = (): void => upload.end(listenerStopping(), workerLost({ retryable: true }))
      closing.addEventListener('abort', stop)
      try {
        worker.takeEvents(request.query.runId, upload)
      } catch (error) {
        upload.end(error as AppError)
      }
      await upload.done.finally(() => closing.removeEventListener('abort', stop))
      return reply.code(204).send()
    },
  )
}
