import { type TSchema, Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failures, NoContent } from '#kernel'
import type { Guard } from '#contracts/auth'
import { type Page, PageQuery } from '#contracts/paging'
import type { RunStore } from '#contracts/run-store'
import { RunPreview } from '#contracts/runs'
import { Session } from '#contracts/sessions'
import { VfsLease, WorkerLease } from '#contracts/leases'
import { listOf, sendList } from '#kit/lists'
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
