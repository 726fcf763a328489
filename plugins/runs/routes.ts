import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from '@sinclair/typebox'
import { access, type App, eventStream, isAppError, lastEventId, linesOf, sse, unavailable } from '#kernel'
import type { Caller, Guard } from '#contracts/auth'
import { type Idempotency, idempotencyErrors, IdempotencyHeaders, replayedHeader } from '#contracts/idempotency'
import { newId } from '#contracts/ids'
import { PageQuery } from '#contracts/paging'
import { type LogChunk, parseLine, peekType } from '#contracts/run-event'
import type { RunFilter, RunStore } from '#contracts/run-store'
import {
  isTerminal,
  type RunAccepted,
  RunPreview,
  type RunSummary,
  runStatuses,
  SubTask,
  type Task,
} from '#contracts/runs'
import { conductorWire, runIdHeader, RunParams, sessionIdHeader, startErrors } from '#contracts/wire/conductor'
import type { Wire } from '#contracts/wire/route'
import { awaitFirstChunk, runFrames, serve } from '#kit'
import { sendList } from '#kit/lists'
import { Terminated } from './cancellation.ts'
import type { RunService } from './service.ts'

const tags = ['runs']
const ProfileParams = Type.Object({ name: Type.String({ description: 'Name of the profile.' }) })
const RunList = Type.Array(RunPreview, { description: 'Newest first.' })
const RunListQuery = Type.Composite([
  PageQuery,
  Type.Object({
    status: Type.Optional(Type.Union(runStatuses.map((status) => Type.Literal(status)))),
    profile: Type.Optional(Type.String({ maxLength: 200, description: 'Only runs of this profile.' })),
    sessionId: Type.Optional(Type.String({ maxLength: 128, description: 'Only runs of this session.' })),
    parent: Type.Optional(Type.String({ maxLength: 128, description: 'Only runs that this run delegated.' })),
    from: Type.Optional(Type.String({ format: 'date-time', description: 'Only runs that started then or later.' })),
    to: Type.Optional(Type.String({ format: 'date-time', description: 'Only runs that started before.' })),
  }),
])

/** The same rows for a tenant's own programs: they name no chat, may repeat a request with its idempotency key, and may see whose session it is. */
export const publicWire = {
  ...conductorWire,
  start: {
    ...conductorWire.start,
    access: 'member',
    headers: IdempotencyHeaders,
    body: SubTask,
    errors: [...startErrors, ...Object.values(idempotencyErrors)],
  },
  find: { ...conductorWire.find, access: 'member' },
  events: {
    ...conductorWire.events,
    access: 'member',
    description:
      '`session_init` included, and `runtimeSessionId` in each (empty until there is one). Replays the log, then follows it to the last event, which is repeated for a reader who is past it.',
  },
  cancel: { ...conductorWire.cancel, access: 'member' },
} as const satisfies Wire

/** How one listener serves runs. */
export interface Plane {
  readonly guard: Guard
  readonly rows: typeof conductorWire | typeof publicWire
  readonly idempotency: Idempotency | undefined
}

/** The routes that gateways and tenants' own programs share, over HTTP or a link. */
export function runRoutes(app: App, service: RunService, { guard, rows, idempotency }: Plane): void {
  const { start, find, events, cancel } = rows as typeof publicWire
  const log = async (tenantId: string, runId: string, after = 0, signal: AbortSignal) => {
    const chunks = service.follow(tenantId, runId, after, signal)
    return rows === publicWire ? lines(chunks, await service.handleOf(tenantId, runId)) : linesOfChunks(chunks)
  }
  serve(
    app,
    start,
    async ({ caller, query, headers, body, wantsLines, signal }) => {
      const { accepted, replayed } = await startOnce(service, idempotency, caller, body, headers['idempotency-key'])
      const told = replayed ? replayedHeader : {}
      if (!wantsLines) return { headers: told, json: accepted }
      const { runId, sessionId } = accepted
      return {
        headers: { ...told, [runIdHeader]: runId, [sessionIdHeader]: sessionId },
        lines: await log(caller.tenantId, runId, query.after, signal),
      }
    },
    guard,
  )
  serve(
    app,
    find,
    async ({ caller: { tenantId }, params, query }) => {
      const run = await service.find(tenantId, params.id)
      if (query.events === false) return { json: run }
      const chunks = service.events(tenantId, run.runId, isTerminal(run.status))
      // While nothing of the log was sent, a failed read is answered with an error status.
      return { parts: await awaitFirstChunk(withEvents(run, chunks)) }
    },
    guard,
  )
  serve(
    app,
    events,
    async ({ caller: { tenantId }, params: { id }, query, signal }) => {
      if (!service.local(tenantId, id)) await service.find(tenantId, id)
      return { lines: await log(tenantId, id, query.after, signal) }
    },
    guard,
  )
  serve(app, cancel, ({ caller: { tenantId }, params }) => service.cancel(tenantId, params.id), guard)
}

/** What only the public listener serves. */
export function publicRunRoutes(app: App, service: RunService, store: RunStore, guard: Guard): void {
  listRoutes(app, store, guard)
  app.get(
    '/api/runs/:id/stream',
    {
      ...access('member', { stream: true }),
      schema: {
        tags,
        summary: 'Stream the events of a run',
        description:
          'Replays the log, then follows it to the last event, `result` or `error`. `Last-Event-ID` resumes right after the event with that `id`; after the last one the ending is repeated.',
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
      if (!service.local(tenantId, id)) await service.find(tenantId, id)
      await sse(request, reply, (signal) => frames(service.follow(tenantId, id, lastEventId(request), signal)))
      return reply
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
          'Asks the executing process to end the run, waits 2 seconds, then takes the run over and ends it: a late answer changes nothing. Always 200; look at every field and at `warnings`.',
        params: RunParams,
        response: { 200: Terminated },
      },
    },
    async (request) => service.terminate(guard.callerOf(request).tenantId, request.params.id),
  )
}

function listRoutes(app: App, store: RunStore, guard: Guard): void {
  const list = async (request: FastifyRequest, reply: FastifyReply, filter: RunFilter) => {
    const runs = await store.listRuns(guard.callerOf(request).tenantId, filter)
    return sendList(request, reply, runs, { page: filter, item: RunPreview })
  }
  app.get(
    '/api/runs',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List runs',
        description: 'Newest first, each with the beginning of its texts and without its events.',
        querystring: RunListQuery,
        response: { 200: RunList },
      },
    },
    (request, reply) => list(request, reply, request.query),
  )
  app.get(
    '/api/profiles/:name/runs',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the runs of a profile',
        description:
          'Newest first, each with the beginning of its texts; also those of a profile that was deleted since.',
        params: ProfileParams,
        querystring: PageQuery,
        response: { 200: RunList },
      },
    },
    (request, reply) => list(request, reply, { ...request.query, profile: request.params.name }),
  )
}

/**
 * Starts a run. With an `Idempotency-Key` it starts at most once, because the run's id is stored with the key before anything begins. `replayed`:
 * an earlier request with the same key started the run.
 */
export async function startOnce(
  service: RunService,
  idempotency: Idempotency | undefined,
  { tenantId, keyId }: Caller,
  task: Task,
  key: string | undefined,
): Promise<{ readonly accepted: RunAccepted; readonly replayed: boolean }> {
  if (key === undefined) return { accepted: await service.start(tenantId, task), replayed: false }
  // Ignoring the key would let a repeated request start a second run.
  if (!idempotency) throw unavailable({ message: 'This server keeps no Idempotency-Keys: it has no database.' })
  const plan = { runId: task.id ?? newId('run') }
  const attempt = await idempotency.begin({ tenantId, scope: `${keyId} runs`, key, body: task, plan })
  const { answer } = attempt
  if (answer) return { accepted: answer.body as RunAccepted, replayed: true }
  try {
    const accepted = await service.start(tenantId, { ...task, id: attempt.plan.runId })
    await attempt.end({ status: 202, body: accepted })
    return { accepted, replayed: false }
  } catch (error) {
    // A refusal began nothing. After any other failure the run may exist, and the next request with the key joins it.
    const refused = isAppError(error) && error.code !== 'unavailable'
    await (refused ? attempt.forget() : attempt.end())
    throw error
  }
}

/** The log as bytes. Written by hand, because a generator costs each chunk three turns of the microtask queue. */
function linesOfChunks(chunks: AsyncIterable<LogChunk>): AsyncIterable<Buffer> {
  return {
    [Symbol.asyncIterator]() {
      const source = chunks[Symbol.asyncIterator]()
      return {
        next: () =>
          source.next().then((read) => (read.done ? read : { done: false as const, value: read.value.lines })),
        return: async () => {
          await source.return?.()
          return { done: true as const, value: undefined }
        },
      }
    },
  }
}

/** Bytes of the log in one part of an answer. */
const partBytes = 64 * 1024

/** A run and its log as one JSON document. The lines are JSON already, and no line stays in memory longer than its part. */
async function* withEvents(run: RunSummary, chunks: AsyncIterable<LogChunk>): AsyncGenerator<Buffer> {
  let part: Buffer[] = [Buffer.from(`${JSON.stringify(run).slice(0, -1)},"events":[`)]
  let bytes = 0
  let between = none
  for await (const chunk of chunks) {
    // A line that is no event would make the whole document invalid.
    for (const line of linesOf(chunk.lines)) {
      part.push(between, parseLine(line) ? line : noEvent)
      between = comma
    }
    bytes += chunk.lines.length
    if (bytes < partBytes) continue
    yield Buffer.concat(part)
    part = []
    bytes = 0
  }
  yield Buffer.concat([...part, Buffer.from(']}')])
}
const none = Buffer.alloc(0)
const comma = Buffer.from(',')
const noEvent = Buffer.from('null')

/** The log with the vendor's conversation handle in each line. Specification 4.8. */
async function* lines(chunks: AsyncIterable<LogChunk>, handle: string): AsyncGenerator<Buffer> {
  let stamp = stampOf(handle)
  for await (const chunk of chunks) {
    const out: Buffer[] = []
    for (const line of linesOf(chunk.lines)) {
      if (peekType(line) === 'session_init') {
        stamp = stampOf(String(parseLine(line)?.['runtimeSessionId'] ?? ''))
        out.push(line, newline)
      } else out.push(line.subarray(0, line.lastIndexOf(0x7d)), stamp)
    }
    yield Buffer.concat(out)
  }
}
const newline = Buffer.from('\n')
const stampOf = (handle: string): Buffer => Buffer.from(`,"runtimeSessionId":${JSON.stringify(handle)}}\n`)

async function* frames(chunks: AsyncIterable<LogChunk>): AsyncGenerator<string> {
  for await (const chunk of chunks) {
    const out = runFrames(chunk)
    if (out !== '') yield out
  }
}
