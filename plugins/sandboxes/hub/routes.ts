import { Type } from '@sinclair/typebox'
import {
  access,
  type App,
  type AppError,
  failures,
  invalidRequest,
  NoContent,
  unavailable,
  uploadAccess,
} from '#kernel'
import { workerProtocolHeader } from '#contracts/wire/sidecar'
import { PollAnswer, pollMs, workerProtocol } from '#contracts/wire/worker'
import { workerTokenErrors } from '#contracts/workers'
import { sandboxErrors } from '../errors.ts'
import { type NewestOfAll, whileCalled, type WorkerAuth } from './auth.ts'
import { receive, type UploadLimits } from './upload.ts'

export const tags = ['workers']
export const SessionParams = Type.Object({ id: Type.String({ maxLength: 128, description: 'Of the session.' }) })

/** Any callback of a worker may be answered so. */
export const refusals = [...Object.values(workerTokenErrors), sandboxErrors.dynamicWorkersUnavailable] as const

const PollQuery = Type.Object({
  after: Type.Integer({ minimum: 0, default: 0, description: 'Every command up to this one has been taken.' }),
  tools: Type.Optional(Type.Literal('1', { description: 'The worker takes `tool` commands.' })),
  wait: Type.Integer({ minimum: 0, maximum: pollMs, default: pollMs, description: 'Milliseconds.' }),
})

/** `closing` aborts when the listener closes: open polls are answered then, so that it need not wait for them. */
export function pollRoutes(app: App, auth: WorkerAuth, { answers }: NewestOfAll, closing: AbortSignal): void {
  app.get(
    '/runner/worker/:id/poll',
    {
      ...access('worker'),
      exposeHeadRoute: false,
      schema: {
        tags,
        summary: 'Ask for commands',
        description:
          'Held open until there is one. A command comes again until a poll says `after` it; a newer poll ends an older one.',
        params: SessionParams,
        querystring: PollQuery,
        headers: Type.Object({ [workerProtocolHeader]: Type.Optional(Type.String({ description: 'Required: 1.' })) }),
        response: {
          200: PollAnswer,
          204: NoContent,
          ...failures(
            ...refusals,
            sandboxErrors.unsupportedWorkerProtocol,
            invalidRequest,
            sandboxErrors.pollSuperseded,
          ),
        },
      },
    },
    async (request, reply) => {
      if (request.headers[workerProtocolHeader] !== workerProtocol) throw sandboxErrors.unsupportedWorkerProtocol()
      const { worker, expiresAt } = auth.of(request)
      const { after, tools, wait } = request.query
      const signal = whileCalled(reply, closing)
      const answer = await worker.poll({ after, tools: tools === '1', waitMs: wait, signal, expiresAt })
      if (answer.commands.length === 0 && answer.token === undefined) return reply.code(204).send()
      answers.begin(worker, reply)
      reply.raw.once('finish', () => worker.left(answer))
      return answer
    },
  )
}

const ToolParams = Type.Object({ id: Type.String({ maxLength: 128 }), callId: Type.String({ maxLength: 128 }) })
const ToolResult = Type.Object({ ok: Type.Boolean(), content: Type.String() })

export function toolRoutes(app: App, auth: WorkerAuth): void {
  app.put(
    '/runner/worker/:id/tools/:callId',
    {
      ...access('worker'),
      schema: {
        tags,
        summary: 'Answer a tool call',
        params: ToolParams,
        body: ToolResult,
        response: { 204: NoContent, ...failures(...refusals, sandboxErrors.unknownCall) },
      },
    },
    async (request, reply) => {
      const { worker } = auth.of(request)
      if (!worker.takeToolResult(request.params.callId, request.body)) throw sandboxErrors.unknownCall()
      return reply.code(204).send()
    },
  )
}

/** In this scope a body is a stream, whatever its content type says. */
export function takeStreams(app: App): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request: unknown, body: unknown, done: (error: null, body: unknown) => void) =>
    done(null, body),
  )
}

/** In a scope of their own: their body is a stream. */
export const eventRoutes = (auth: WorkerAuth, limits: UploadLimits, closing: AbortSignal) => async (app: App) => {
  takeStreams(app)
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
          ...failures(
            ...refusals,
            sandboxErrors.invalidEvents,
            invalidRequest,
            sandboxErrors.unknownRun,
            sandboxErrors.eventUploadTimeout,
            sandboxErrors.eventUploadTooLarge,
          ),
        },
      },
    },
    async (request, reply) => {
      const { worker } = auth.of(request)
      const upload = receive(request.raw, limits, () => worker.seen())
      const stop = (): void =>
        upload.end(unavailable({ message: 'This server is stopping; try again.' }), sandboxErrors.sidecarLost())
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
