import type { IncomingHttpHeaders } from 'node:http'
import { Type } from '@sinclair/typebox'
import {
  access,
  type App,
  type AppError,
  failures,
  httpErrors,
  invalidRequest,
  negotiated,
  NoContent,
  unavailable,
  onceClosed,
} from '#kernel'
import { accessErrors } from '#contracts/access-errors'
import { limitErrors } from '#contracts/limits'
import { runnerErrors } from '#contracts/runner-errors'
import { runtimeSessionIdHeader, workerProtocolHeader } from '#contracts/wire/sidecar'
import { maxStateBytes, PollAnswer, pollMs, stateRevHeader, workerProtocol } from '#contracts/wire/worker'
import { workerTokenErrors } from '#contracts/workers'
import type { StateBundle } from '#contracts/runtime'
import { type SessionRequests, takeBytes, takeStreams } from '#kit'
import { sandboxErrors } from '../errors.ts'
import { type NewestOfAll, whileCalled, type WorkerAuth } from './auth.ts'
import { receive, type UploadLimits } from './upload.ts'
import type { Answer } from './worker.ts'

export const tags = ['workers']
const SessionParams = Type.Object({ id: Type.String({ maxLength: 128, description: 'Id of the session.' }) })

/** Errors of all callbacks of workers. */
export const refusals = [
  ...Object.values(workerTokenErrors),
  accessErrors.tooManyWrongKeys,
  sandboxErrors.dynamicWorkersUnavailable,
] as const

const PollQuery = Type.Object({
  after: Type.Integer({ minimum: 0, default: 0, description: 'Every command up to this one has been taken.' }),
  tools: Type.Optional(Type.Literal('1', { description: 'The worker takes `tool` commands.' })),
  links: Type.Optional(Type.Literal('1', { description: 'The worker reads linked attachments from the runner.' })),
  wait: Type.Integer({ minimum: 0, maximum: pollMs, default: pollMs, description: 'Milliseconds.' }),
})

/** Routes for polls. `closing` aborts when the listener closes: open polls are answered then, so that the listener need not wait for them. */
export function pollRoutes(app: App, auth: WorkerAuth, { answers }: NewestOfAll, closing: AbortSignal): void {
  app.get(
    '/runner/worker/:id/poll',
    {
      ...access('worker'),
      exposeHeadRoute: false,
      schema: {
        tags,
        summary: 'Poll for commands',
        description:
          'Held open until there is one. A command is repeated until a poll has passed it with `after`; a newer poll ends an older one.',
        params: SessionParams,
        querystring: PollQuery,
        headers: Type.Object({ [workerProtocolHeader]: Type.Optional(Type.String({ description: 'Required: 1.' })) }),
        response: {
          200: negotiated('The commands, and a token that replaces the one that the worker has.', {
            'application/json': PollAnswer,
          }),
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
      const { after, tools, links, wait } = request.query
      const signal = whileCalled(reply, closing)
      const answer = await worker.poll({
        after,
        tools: tools === '1',
        links: links === '1',
        waitMs: wait,
        signal,
        expiresAt,
      })
      if (answer.commands.length === 0 && answer.token === undefined) return reply.code(204).send()
      answers.begin(worker, reply)
      reply.raw.once('finish', () => worker.left(answer))
      return reply.type('application/json; charset=utf-8').send(bytesOf(answer))
    },
  )
}

/** A `PollAnswer`. The commands are serialized already. */
function bytesOf({ commands, token }: Answer): Buffer {
  const comma = Buffer.from(',')
  const list = commands.flatMap(({ json }, at) => (at === 0 ? [json] : [comma, json]))
  const rest = token === undefined ? '' : `,"token":${JSON.stringify(token)}`
  return Buffer.concat([Buffer.from('{"commands":['), ...list, Buffer.from(`]${rest}}`)])
}

const ToolParams = Type.Object({ id: Type.String({ maxLength: 128 }), callId: Type.String({ maxLength: 128 }) })
const ToolResult = Type.Object({ ok: Type.Boolean(), content: Type.String() })

export function toolRoutes(app: App, auth: WorkerAuth, results: SessionRequests): void {
  app.put(
    '/runner/worker/:id/tools/:callId',
    {
      ...access('worker'),
      onRequest: async (request, reply) => void results.begin(request, reply, auth.of(request).worker),
      schema: {
        tags,
        summary: 'Answer a tool call',
        params: ToolParams,
        body: ToolResult,
        response: {
          204: NoContent,
          ...failures(...refusals, sandboxErrors.unknownCall, runnerErrors.tooManySessionRequests),
        },
      },
    },
    async (request, reply) => {
      const { worker } = auth.of(request)
      if (!worker.takeToolResult(request.params.callId, request.body)) throw sandboxErrors.unknownCall()
      return reply.code(204).send()
    },
  )
}

/** The route for the events of runs. It needs a scope of its own, because its body is a stream. */
export const eventRoutes = (auth: WorkerAuth, limits: UploadLimits, closing: AbortSignal) => async (app: App) => {
  takeStreams(app)
  app.post(
    '/runner/worker/:id/events',
    {
      ...access('worker', { upload: true }),
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

const stateUrl = '/runner/worker/:id/state'
const bytes = Type.String({ format: 'binary' })
const bundleForms = { 'application/json': Type.Unknown(), 'application/gzip': bytes, 'application/octet-stream': bytes }
const rev = { minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Counts the copies of this state.' }
const PutHeaders = Type.Object({
  [stateRevHeader]: Type.Integer(rev),
  [runtimeSessionIdHeader]: Type.Optional(Type.String({ maxLength: 1024 })),
})
const DeleteHeaders = Type.Object({ [stateRevHeader]: Type.Integer({ ...rev, default: 0 }) })

/** Routes for the runner's copy of a worker's state. They need a scope of their own, because here a body is bytes, whatever its content type. */
export const stateRoutes =
  (auth: WorkerAuth, { uploads, downloads }: NewestOfAll) =>
  async (app: App) => {
    takeBytes(app, maxStateBytes)
    app.get(
      stateUrl,
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

    uploadRoute(app, auth, uploads)
    app.delete(
      stateUrl,
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
        const { worker } = auth.of(request)
        worker.takeState(undefined, request.headers[stateRevHeader])
        worker.stateArrived(0)
        return reply.code(204).send()
      },
    )
  }

function uploadRoute(app: App, auth: WorkerAuth, uploads: NewestOfAll['uploads']): void {
  app.put(
    stateUrl,
    {
      ...access('worker'),
      bodyLimit: maxStateBytes,
      onRequest: async (request, reply) => {
        const { worker } = auth.of(request)
        uploads.begin(worker, reply)
        // A body without a length counts as the largest one.
        const said = Number(request.headers['content-length'] ?? maxStateBytes)
        const bytes = Math.min(said, maxStateBytes)
        worker.expectState(bytes)
        onceClosed(reply.raw, () => worker.stateArrived(bytes))
      },
      schema: {
        tags,
        summary: 'Give the runner a copy of the state',
        description:
          'A copy with an older `X-Agent-Orc-State-Rev` changes nothing; its connection is closed if it is still being sent.',
        consumes: Object.keys(bundleForms),
        params: SessionParams,
        headers: PutHeaders,
        body: Type.Unknown({ description: 'A bundle.' }),
        response: {
          204: NoContent,
          ...failures(...refusals, runnerErrors.unknownSession, httpErrors.bodyTooLarge, limitErrors.limitReached),
        },
      },
    },
    async (request, reply) => {
      auth.of(request).worker.takeState(bundleOf(request), request.headers[stateRevHeader])
      return reply.code(204).send()
    },
  )
}

function bundleOf({ headers, body }: { readonly headers: IncomingHttpHeaders; readonly body: unknown }): StateBundle {
  const { [runtimeSessionIdHeader]: handle = '', 'content-type': contentType = 'application/octet-stream' } = headers
  const bytes = (body as Buffer | undefined) ?? Buffer.alloc(0)
  return { bytes, contentType, ...(handle === '' ? {} : { runtimeSessionId: String(handle) }) }
}
