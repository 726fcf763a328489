import { Type } from '@sinclair/typebox'
import type { FastifyReply } from 'fastify'
import { access, type App, failures, NoContent } from '#kernel'
import type { Guard } from '#contracts/auth'
import { type Page, pageHeaders, pageOf, PageQuery } from '#contracts/paging'
import type { RunStore } from '#contracts/run-store'
import { RunSummary } from '#contracts/runs'
import { Session } from '#contracts/sessions'
import { VfsLease, WorkerLease } from '#contracts/runner'
import type { SessionService } from './service.ts'
import { sessionErrors } from './errors.ts'
import type { LeaseService } from './leases.ts'

const tags = ['sessions']

export const SessionParams = Type.Object({ id: Type.String({ description: 'Id of the session.' }) })
const SessionListQuery = Type.Composite([
  PageQuery,
  Type.Object({
    q: Type.Optional(Type.String({ maxLength: 200, description: 'Part of the session id or the profile name.' })),
  }),
])
const SessionList = Type.Array(Session, { description: 'Live sessions, newest first.' })
const SessionRuns = Type.Array(RunSummary, { description: 'Newest first.' })

/** How one listener authenticates its callers. */
interface Plane {
  readonly guard: Guard
  readonly who: { readonly read: string; readonly write: string }
}

/** The routes that gateways call, too: the same handlers on the public and on the signed listener. */
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
          'For good: no run starts in it again, and runs that wait for it are cancelled. 409 `session_busy` while it executes one: cancel that first.',
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
      const filter = { ...pageOf(page), ...(q === undefined ? {} : { q }) }
      const { sessions, total } = await store.listSessions(guard.callerOf(request).tenantId, filter)
      return reply.headers(pageHeaders(request.url, page, total)).send(sessions)
    },
  )
  app.get(
    '/api/sessions/:id/runs',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the runs of a session',
        description: 'Newest first, those that wait for it included.',
        params: SessionParams,
        querystring: PageQuery,
        response: { 200: SessionRuns },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id: sessionId } = await service.get(tenantId, request.params.id)
      const { runs, total } = await store.listRuns(tenantId, { sessionId, ...pageOf(request.query) })
      return reply.headers(pageHeaders(request.url, request.query, total)).send(runs)
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
    async (request, reply) => answerPage(await service.workers(guard.callerOf(request).tenantId), request, reply),
  )
  app.get(
    '/api/sessions/:id/worker',
    {
      ...access('member'),
      schema: {
        tags: ['sessions'],
        summary: 'Show the sandbox worker of a session',
        description:
          'None for a session whose profile uses static workers, for an unknown one, and before its first run.',
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
    async (request, reply) => answerPage(await service.vfs(guard.callerOf(request).tenantId), request, reply),
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

function answerPage<T>(leases: T[], { url, query }: { url: string; query: Page }, reply: FastifyReply): T[] {
  const { limit, offset = 0 } = query
  void reply.headers(pageHeaders(url, query, leases.length))
  return limit === undefined ? leases : leases.slice(offset, offset + limit)
}
