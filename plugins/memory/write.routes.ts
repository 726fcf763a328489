import { Type } from '@sinclair/typebox'
import { access, type App, failures, httpErrors, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import type { MemoryBank } from './bank/bank.ts'
import { tags } from './routes.ts'
import { CreateMemory, MemoryParams, NameParams, NotStored, Stored } from './schema.ts'

/** Writes of memories, for admins; agents have tools. */
export function memoryWriteRoutes(app: App, guard: Guard, bank: MemoryBank): void {
  app.post(
    '/api/profiles/:name/memories',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Create a memory',
        description:
          'What says nothing, and what is there already, is not stored: `stored` tells. A statement that corrects another one takes its place, and the other stays as history.',
        params: NameParams,
        body: CreateMemory,
        response: {
          201: Type.Union([Stored, NotStored]),
          ...failures(httpErrors.invalidRequest, notFound, limitErrors.limitExceeded),
        },
      },
    },
    async (request, reply) => {
      const made = await bank.create(guard.callerOf(request).tenantId, request.params.name, request.body)
      return reply.code(201).send(made)
    },
  )
  app.delete(
    '/api/profiles/:name/memories/:id',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a memory',
        description: 'For good. What it had superseded stays history.',
        params: MemoryParams,
        response: { 204: NoContent, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      await bank.remove(guard.callerOf(request).tenantId, request.params.name, request.params.id)
      return reply.code(204).send()
    },
  )
}
