import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { pageHeaders } from '#contracts/paging'
import { listEntries, noSuchTime } from './trail.ts'
import { AuditQuery, ListedEntry } from './schema.ts'

const description = `Newest first. An entry is written before the request is handled, so a write that happened is here
whatever became of its server. Requests refused with 403 are here too; those of unknown callers are not.`.replaceAll(
  '\n',
  ' ',
)

export function auditRoutes(app: App, guard: Guard, database: Database): void {
  app.get(
    '/api/audit',
    {
      ...access('admin'),
      schema: {
        tags: ['audit'],
        summary: 'List administrative writes of the tenant',
        description,
        querystring: AuditQuery,
        response: { 200: Type.Array(ListedEntry) },
      },
    },
    async (request, reply) => {
      const { from, to, ...filter } = request.query
      const times = { ...timeOf('from', from), ...timeOf('to', to) }
      const { entries, total } = await listEntries(database, guard.callerOf(request).tenantId, { ...filter, ...times })
      void reply.headers(pageHeaders(request.url, filter, total))
      return entries
    },
  )
}

function timeOf(name: 'from' | 'to', text: string | undefined): { from?: Date; to?: Date } {
  if (text === undefined) return {}
  const time = new Date(text)
  // A zone can move a time out of the four-digit years, which is all that PostgreSQL reads in this form.
  if (Number.isNaN(time.getTime()) || !/^(?!0000)\d{4}-/.test(time.toISOString())) throw noSuchTime(name)
  return { [name]: time }
}
