import { type TSchema, Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, eventStream, failures, NoContent, sse } from '#kernel'
import type { Guard } from '#contracts/auth'
import { type Page, PageQuery } from '#contracts/paging'
import type { RunStore } from '#contracts/run-store'
import { type RunDispatch, RunPreview } from '#contracts/runs'
import { Session, sessionChannels } from '#contracts/sessions'
import { VfsLease, WorkerLease } from '#contracts/leases'
import { listOf, sendList } from '#kit/lists'
import { isClientId } from '#contracts/ids'
import type { Kv } from '#contracts/kv'
import { lastSeqOf, type LogChunk } from '#contracts/run-event'
import { runFrames } from '#kit'
import { type LeaseService, sessionErrors, type SessionService } from './service.ts'

const tags = ['sessions']

export const SessionParams = Type.Object({ id: Type.String({ description: 'Id of the session.' }) })
const SessionListQuery = Type.Composite([
  PageQuery,
  Type.Object({
    q: Type.Optional(
      Type.String({
        maxLength: 200,
        description:
          'Part of the session id or the profile name, searched in the newest 10,000 sessions; a whole id is found in all sessions.',
      }),
    ),
  }),
])
const SessionList = Type.Array(Session, { description: 'Live sessions, newest first.' })
const SessionRuns = Type.Array(RunPreview, { description: 'Newest first.' })

/** How one listener authenticates its callers. */
interface Plane {
  readonly guard: Guard
  readonly who: { readonly read: string; readonly write: string }
}

/** The routes that gateways call as well: the same handlers on the public and on the signed listener. */
export function sessionRoutes(app: App, service: SessionService, { guard, who }: Plane): void {
  app.get(
    '/api/sessions/:id',
    {
      ...access(who.read),
      schema: {
        tags,
        summary: 'Get a session',
        description: 'Also one that was shut down.',
        params: SessionParams,
        response: { 200: Session, ...failures(sessionErrors.notFound) },
      },
    },
    async (request) => service.get(guard.callerOf(request).tenantId, request.params.id),
  )
  app.delete(
    '/api/sessions/:id',
    {
      ...access(who.write),
      schema: {
        tags,
        summary: 'Shut a session down',
        description:
          'Permanently: no run starts in it again, and runs that wait for it are cancelled. 409 `session_busy` while it executes one: cancel that first.',
        params: SessionParams,
        response: { 204: NoContent, ...failures(sessionErrors.notFound, sessionErrors.sessionBusy) },
      },
    },
    async (request, reply) => {
      await service.shutdown(guard.callerOf(request).tenantId, request.params.id)
      return reply.code(204).send()
    },
  )
}

/** What only the public listener serves. */
export function publicSessionRoutes(app: App, service: SessionService, store: RunStore, guard: Guard): void {
  app.get(
    '/api/sessions',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List live sessions',
        description: 'Newest first, without those that were shut down.',
        querystring: SessionListQuery,
        response: { 200: SessionList },
      },
    },
    async (request, reply) => {
      const { q, ...page } = request.query
      const filter = { ...page, ...(q === undefined ? {} : { q }) }
      const sessions = await store.listSessions(guard.callerOf(request).tenantId, filter)
      return sendList(request, reply, sessions, { page, item: Session })
    },
  )
  app.get(
    '/api/sessions/:id/runs',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the runs of a session',
        description: 'Newest first, those that wait for it included, each with the beginning of its texts.',
        params: SessionParams,
        querystring: PageQuery,
        response: { 200: SessionRuns },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id: sessionId } = await service.get(tenantId, request.params.id)
      const { query: page } = request
      return sendList(request, reply, await store.listRuns(tenantId, { sessionId, ...page }), {
        page,
        item: RunPreview,
      })
    },
  )
}

export function leaseRoutes(app: App, guard: Guard, service: LeaseService): void {
  app.get(
    '/api/worker/leases',
    {
      ...access('member'),
      schema: {
        tags: ['sessions'],
        summary: 'List sandbox workers',
        description:
          "Of the tenant's sessions, by session id, read live from the runners. Runners that do not answer in time are left " +
          'out. Empty when no runner has a worker substrate.',
        querystring: PageQuery,
        response: { 200: Type.Array(WorkerLease) },
      },
    },
    async (request, reply) => {
      const leases = await service.workers(guard.callerOf(request).tenantId)
      return answer(leases, WorkerLease, request, reply)
    },
  )
  app.get(
    '/api/sessions/:id/worker',
    {
      ...access('member'),
      schema: {
        tags: ['sessions'],
        summary: 'Show the sandbox worker of a session',
        description:
          '404 for a session whose profile uses static workers, for an unknown session, and before the first run.',
        params: SessionParams,
        response: { 200: WorkerLease, ...failures(sessionErrors.noSandboxWorker, sessionErrors.upstream) },
      },
    },
    async (request) => service.worker(guard.callerOf(request).tenantId, request.params.id),
  )
  app.get(
    '/api/vfs/leases',
    {
      ...access('member'),
      schema: {
        tags: ['sessions'],
        summary: 'List VirtualFS leases',
        description: "Of the tenant's sessions, by session id. Empty when no runner has a VirtualFS manager.",
        querystring: PageQuery,
        response: { 200: Type.Array(VfsLease) },
      },
    },
    async (request, reply) => {
      const leases = await service.vfs(guard.callerOf(request).tenantId)
      return answer(leases, VfsLease, request, reply)
    },
  )
  app.get(
    '/api/sessions/:id/vfs-lease',
    {
      ...access('member'),
      schema: {
        tags: ['sessions'],
        summary: 'Show the VirtualFS lease of a session',
        params: SessionParams,
        response: { 200: VfsLease, ...failures(sessionErrors.noVfsSession, sessionErrors.upstream) },
      },
    },
    async (request) => service.vfsOf(guard.callerOf(request).tenantId, request.params.id),
  )
}

/** Leases per portion of a list. The runners have already reported all of them, so only their text is produced in portions. */
const atOnce = 1_000

const answer = <T>(leases: T[], item: TSchema, request: FastifyRequest, reply: FastifyReply) => {
  const page = request.query as Page
  return sendList(
    request,
    reply,
    listOf(leases, page, atOnce, (lease) => lease),
    { page, item },
  )
}

interface Sources {
  readonly store: Pick<RunStore, 'runsOfSession'>
  readonly dispatch: Pick<RunDispatch, 'follow'>
  readonly kv: Pick<Kv, 'subscribe'>
}

/** A position in a session: after event `seq` of its `ordinal`th run. `0.0` is the beginning. */
interface Cursor {
  readonly ordinal: number
  readonly seq: number
}

/** Parses `<ordinal>.<seq>`, the form in which the stream numbers its events. Any other text means the beginning. */
function readCursor(text: unknown): Cursor {
  const [, ordinal, seq] = (typeof text === 'string' && /^(\d{1,9})\.(\d{1,9})$/.exec(text)) || []
  return ordinal === undefined ? { ordinal: 0, seq: 0 } : { ordinal: Number(ordinal), seq: Number(seq) }
}

/** An ordinal greater than that of any run: the largest value of PostgreSQL's integer. */
const lastOrdinal = 2_147_483_647

export function sessionStreamRoutes(app: App, guard: Guard, deps: Sources): void {
  app.get(
    '/api/sessions/:id/stream',
    {
      ...access('member', { stream: true }),
      schema: {
        tags: ['sessions'],
        summary: 'Follow a session across its runs',
        description:
          'The events of all runs of the session in order, then those of future runs. `Last-Event-ID` resumes right after the event with that `id`. Ends when the session is shut down.',
        params: SessionParams,
        response: {
          200: eventStream('`event` is the type of a RunEvent, `data` the RunEvent, `id` one cursor across all runs.'),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id } = request.params
      const known = isClientId(id) && (await deps.store.runsOfSession(tenantId, id, lastOrdinal))
      if (!known) throw sessionErrors.notFound()
      const cursor = readCursor(request.headers['last-event-id'])
      await sse(request, reply, (signal) => frames(followSession(deps, tenantId, id, cursor, signal)))
      return reply
    },
  )
}

async function* frames(chunks: ReturnType<typeof followSession>): AsyncGenerator<string> {
  for await (const { ordinal, chunk } of chunks) {
    const out = runFrames(chunk, `${ordinal}.`)
    if (out !== '') yield out
  }
}

/** Milliseconds between looks for the next run, in case no wake-up arrives. */
const lookMs = 2_000

/** The events of a session after a cursor, run after run, including future ones. Ends after the last event of a session that was shut down. */
async function* followSession(
  { store, dispatch, kv }: Sources,
  tenantId: string,
  sessionId: string,
  from: Cursor,
  signal: AbortSignal,
): AsyncGenerator<{ ordinal: number; chunk: LogChunk }> {
  // The cursor's run is read again, from the event after the cursor.
  let done = Math.max(0, from.ordinal - 1)
  let woken = false
  let resume: (() => void) | undefined
  const wake = (): void => {
    woken = true
    resume?.()
  }
  const unsubscribe = kv.subscribe(`${sessionChannels}${tenantId}:${sessionId}`, wake)
  signal.addEventListener('abort', wake)
  try {
    while (!signal.aborted) {
      woken = false
      const found = await store.runsOfSession(tenantId, sessionId, done)
      for (const { runId, ordinal } of found?.runs ?? []) {
        const after = ordinal === from.ordinal ? from.seq : 0
        for await (const chunk of dispatch.follow(tenantId, runId, after, signal)) {
          // A log repeats its last event to a reader that already has it, as this reader does.
          if (lastSeqOf(chunk) !== after) yield { ordinal, chunk }
        }
        if (signal.aborted) return
        done = ordinal
      }
      if (found && found.runs.length > 0) continue
      if (!found || found.status === 'shutdown') return
      if (woken) continue
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, lookMs)
        resume = () => {
          clearTimeout(timer)
          resolve()
        }
      })
      resume = undefined
    }
  } finally {
    unsubscribe()
    signal.removeEventListener('abort', wake)
  }
}
