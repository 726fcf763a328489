import {
  access,
  type App,
  eventStream,
  failure,
  jsonLines,
  lastEventId,
  ndjson,
  negotiated,
  NoContent,
  sse,
  sseFrame,
} from '#kernel'
import type { Guard } from '#contracts/auth'
import { IdempotencyHeaders, replayedHeader } from '#contracts/idempotency'
import { pageHeaders, PageQuery, type Page } from '#contracts/paging'
import { parseLine, peekType } from '#contracts/run-event'
import type { RunFilter, RunStore } from '#contracts/run-store'
import { isTerminal, type LogChunk, RunAccepted, SubTask } from '#contracts/runs'
import { withEnding } from './ending.ts'
import type { StartOnce } from './once.ts'
import {
  EventLine,
  EventsQuery,
  ProfileParams,
  RunDetail,
  RunDetailQuery,
  RunList,
  RunListQuery,
  RunParams,
} from './schema.ts'
import type { RunService } from './service.ts'
import { Terminated } from './terminate.ts'

const tags = ['runs']
/** A prompt of 1,000,000 characters, most of them one byte in JSON, and attachments of 4 MiB in base64. */
const maxRunBytes = 8 * 1024 * 1024

/** One listener's way of saying who may call, and how it starts a run. */
export interface Plane {
  readonly guard: Guard
  readonly who: { readonly read: string; readonly write: string }
  readonly start: StartOnce
}

/** What a gateway needs too: the same handlers on the public and on the signed listener. */
export function runRoutes(app: App, service: RunService, { guard, who, start }: Plane): void {
  app.post(
    '/api/runs',
    {
      ...access(who.write),
      bodyLimit: maxRunBytes,
      schema: {
        tags,
        summary: 'Start a run',
        description:
          'In a new session, or in `sessionId`. Answers at once; the run goes on without the caller. With `Accept: application/x-ndjson` the answer is its event log, followed to the end, and the ids are in `X-Run-Id` and `X-Session-Id`.',
        headers: IdempotencyHeaders,
        body: SubTask,
        response: {
          202: negotiated('Accepted.', { 'application/json': RunAccepted, 'application/x-ndjson': EventLine }),
          400: failure(
            '`unknown_profile: <name>`, `invalid run id`, `invalid session id`, `invalid_webhook`, `invalid_attachment`, `invalid_response_format`, `invalid_request`.',
          ),
          404: failure('`not_found`: no such session, or it was shut down.'),
          409: failure(
            '`session_busy`: see `whenBusy`. `session_profile_mismatch`: the session is of another profile. `conflict`: the run id is taken. `idempotency_in_flight`.',
          ),
          413: failure('`attachments_too_large`: 4 MiB together. `body_too_large`.'),
          422: failure('`idempotency_key_reused`.'),
          429: failure('`queue_full`: as many runs wait for the session as may.'),
          502: failure('`runner_failed`: the session could not be restored on its runner.'),
        },
      },
    },
    async (request, reply) => {
      const caller = guard.callerOf(request)
      const { tenantId } = caller
      const { accepted, replayed } = await start(caller, request.body, request.headers['idempotency-key'])
      if (replayed) void reply.headers(replayedHeader)
      if (!request.headers.accept?.includes('application/x-ndjson')) return reply.code(202).send(accepted)
      const headers = { 'x-run-id': accepted.runId, 'x-session-id': accepted.sessionId }
      const { runId } = accepted
      await ndjson(request, reply, (signal) => bytes(service.follow(tenantId, runId, 0, signal)), {
        status: 202,
        headers,
      })
      return reply
    },
  )
  app.get(
    '/api/runs/:id',
    {
      ...access(who.read),
      schema: {
        tags,
        summary: 'Get a run',
        description: 'Its summary and, unless `events=false`, its events so far.',
        params: RunParams,
        querystring: RunDetailQuery,
        response: { 200: RunDetail },
      },
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const run = await service.find(tenantId, request.params.id)
      if (request.query.events === false) return run
      const events: unknown[] = []
      for await (const chunk of service.events(tenantId, run.runId, isTerminal(run.status)))
        for (const line of lines(chunk)) events.push(parseLine(line.bytes))
      return { ...run, events }
    },
  )
  app.get(
    '/api/runs/:id/stream',
    {
      ...access(who.read),
      schema: {
        tags,
        summary: 'Stream the events of a run',
        description:
          'Replays what was, then follows to the last one, `result` or `error`. `Last-Event-ID` resumes exactly behind the event of that `id`; behind the last one the ending is told again.',
        params: RunParams,
        response: {
          200: eventStream(
            '`event` is the type of a RunEvent, `data` the RunEvent, `id` its `seq`. No `session_init`.',
          ),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id } = request.params
      if (!service.executes(tenantId, id)) await service.find(tenantId, id)
      await sse(request, reply, (signal) =>
        frames(
          withEnding(service.follow(tenantId, id, lastEventId(request), signal), () =>
            signal.aborted ? nothing() : service.events(tenantId, id),
          ),
        ),
      )
      return reply
    },
  )
  app.get(
    '/api/runs/:id/events',
    {
      ...access(who.read),
      schema: {
        tags,
        summary: 'Read the raw event log of a run',
        description: '`session_init` included. Replays what was, then follows to the last one.',
        params: RunParams,
        querystring: EventsQuery,
        response: { 200: jsonLines('One RunEvent a line.', EventLine) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id } = request.params
      const after = request.query.after ?? 0
      if (!service.executes(tenantId, id)) await service.find(tenantId, id)
      await ndjson(request, reply, (signal) => bytes(service.follow(tenantId, id, after, signal)))
      return reply
    },
  )
  app.delete(
    '/api/runs/:id',
    {
      ...access(who.write),
      schema: {
        tags,
        summary: 'Cancel a run',
        description: 'Whichever server executes it, or none yet. A run that is over keeps its status.',
        params: RunParams,
        response: { 204: NoContent },
      },
    },
    async (request, reply) => {
      await service.cancel(guard.callerOf(request).tenantId, request.params.id)
      return reply.code(204).send()
    },
  )
}

/** What only the public listener serves. */
export function publicRunRoutes(app: App, service: RunService, store: RunStore, guard: Guard): void {
  const list = async (
    tenantId: string,
    url: string,
    page: Page,
    filter: Omit<RunFilter, 'limit' | 'offset'>,
  ): Promise<{ runs: Awaited<ReturnType<RunStore['listRuns']>>['runs']; headers: Record<string, string> }> => {
    const { limit, offset } = page
    const paged = limit === undefined ? {} : { limit, offset: offset ?? 0 }
    const { runs, total } = await store.listRuns(tenantId, { ...filter, ...paged })
    return { runs, headers: pageHeaders(url, page, total) }
  }
  app.get(
    '/api/runs',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List runs',
        description: 'Newest first, without their events.',
        querystring: RunListQuery,
        response: { 200: RunList },
      },
    },
    async (request, reply) => {
      const { limit, offset, ...filter } = request.query
      const { tenantId } = guard.callerOf(request)
      const page = { ...(limit === undefined ? {} : { limit }), ...(offset === undefined ? {} : { offset }) }
      const { runs, headers } = await list(tenantId, request.url, page, filter)
      return reply.headers(headers).send(runs)
    },
  )
  app.get(
    '/api/profiles/:name/runs',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the runs of a profile',
        description: 'Newest first, without their events; also those of a profile that was deleted since.',
        params: ProfileParams,
        querystring: PageQuery,
        response: { 200: RunList },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const profile = request.params.name
      const { runs, headers } = await list(tenantId, request.url, request.query, { profile })
      return reply.headers(headers).send(runs)
    },
  )
  app.post(
    '/api/runs/:id/terminate',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'End a run by force',
        description:
          'Asks whoever executes the run to end it, waits 2 seconds, then takes it away: a late answer changes nothing. Always 200; look at every field and at `warnings`.',
        params: RunParams,
        response: { 200: Terminated },
      },
    },
    async (request) => service.terminate(guard.callerOf(request).tenantId, request.params.id),
  )
}

async function* nothing(): AsyncGenerator<LogChunk> {}

async function* bytes(chunks: AsyncIterable<LogChunk>): AsyncGenerator<Buffer> {
  for await (const chunk of chunks) yield chunk.lines
}

// The vendor's conversation handle is for the raw log only. Specification 2.8.
async function* frames(chunks: AsyncIterable<LogChunk>): AsyncGenerator<string> {
  for await (const chunk of chunks) {
    let out = ''
    for (const line of lines(chunk)) {
      const type = peekType(line.bytes)
      if (type !== undefined && type !== 'session_init') out += sseFrame(type, line.bytes.toString('utf8'), line.seq)
    }
    if (out !== '') yield out
  }
}

function* lines(chunk: LogChunk): Generator<{ seq: number; bytes: Buffer }> {
  let start = 0
  for (let i = 0; i < chunk.count; i++) {
    const end = chunk.lines.indexOf(0x0a, start)
    yield { seq: chunk.firstSeq + i, bytes: chunk.lines.subarray(start, end < 0 ? chunk.lines.length : end) }
    start = end + 1
  }
}
