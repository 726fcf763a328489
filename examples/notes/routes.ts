import { access, type App, failures, NoContent, Type } from 'agent-orc/kernel'
import type { Guard } from 'agent-orc/contracts/auth'
import { isId, newId } from 'agent-orc/contracts/ids'
import { PageQuery } from 'agent-orc/contracts/paging'
import { sendList } from 'agent-orc/kit/lists'
import { errors } from './errors.ts'
import { IdParams, Note, NoteInput } from './schema.ts'
import type { NoteStore } from './store.ts'

const tags = ['notes']

/** The tenant comes from the caller's key alone. An id of another tenant answers as one that never was. */
export function noteRoutes(app: App, guard: Guard, store: NoteStore): void {
  app.get(
    '/api/notes',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List notes',
        description: 'Oldest first.',
        querystring: PageQuery,
        response: { 200: Type.Array(Note) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      return sendList(request, reply, await store.list(guard.callerOf(request).tenantId, page), { page, item: Note })
    },
  )
  app.post(
    '/api/notes',
    {
      ...access('admin'),
      schema: { tags, summary: 'Write a note', body: NoteInput, response: { 201: Note } },
    },
    async (request, reply) => {
      const { tenantId, keyId } = guard.callerOf(request)
      const note = await store.insert(tenantId, { id: newId('note'), text: request.body.text, createdBy: keyId })
      return reply.code(201).send(note)
    },
  )
  app.get(
    '/api/notes/:id',
    {
      ...access('member'),
      schema: { tags, summary: 'Get a note', params: IdParams, response: { 200: Note, ...failures(errors.notFound) } },
    },
    async (request) => {
      const note = await store.find(guard.callerOf(request).tenantId, known(request.params.id))
      if (!note) throw errors.notFound()
      return note
    },
  )
  app.delete(
    '/api/notes/:id',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a note',
        params: IdParams,
        response: { 204: NoContent, ...failures(errors.notFound) },
      },
    },
    async (request, reply) => {
      const deleted = await store.remove(guard.callerOf(request).tenantId, known(request.params.id))
      if (!deleted) throw errors.notFound()
      return reply.code(204).send()
    },
  )
}

/** Text that cannot be an id is unknown, and never reaches the database. */
function known(id: string): string {
  if (!isId('note', id)) throw errors.notFound()
  return id
}
