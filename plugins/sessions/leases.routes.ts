import { Type } from '@sinclair/typebox'
import type { FastifyReply } from 'fastify'
import { access, type App, failures } from '#kernel'
import type { Guard } from '#contracts/auth'
import { type Page, pageHeaders, PageQuery } from '#contracts/paging'
import { VfsLease, WorkerLease } from '#contracts/runner'
import type { LeaseService } from './leases.ts'
import { SessionParams } from './routes.ts'
import { sessionErrors } from './errors.ts'

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
    async (request, reply) => pageOf(await service.workers(guard.callerOf(request).tenantId), request, reply),
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
    async (request, reply) => pageOf(await service.vfs(guard.callerOf(request).tenantId), request, reply),
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

function pageOf<T>(leases: T[], { url, query }: { url: string; query: Page }, reply: FastifyReply): T[] {
  const { limit, offset = 0 } = query
  void reply.headers(pageHeaders(url, query, leases.length))
  return limit === undefined ? leases : leases.slice(offset, offset + limit)
}
