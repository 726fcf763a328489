import { Type } from '@sinclair/typebox'
import { access, type App, definePlugin, maybe } from '#kernel'
import { AuditedWrites, AuditLog } from '#contracts/audit'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database, needsDatabase } from '#contracts/database'
import { TenantLimits } from '#contracts/limits'
import { sendList } from '#kit/lists'
import { createAuditTrail, listEntries, noSuchTime } from './trail.ts'
import { AuditQuery, ListedEntry } from './schema.ts'

/** The append-only log of administrative writes. The guard writes the entries, admins read them. */
export default definePlugin({
  name: 'audit',
  requires: { guard: ApiGuard, writes: AuditedWrites, database: Database, limits: maybe(TenantLimits) },
  provides: { trail: AuditLog },
  async setup({ deps, log, routes }) {
    // Without a database there is no log, so writes are done without an entry.
    const trail = createAuditTrail(deps.database, log, deps.limits)
    if (!deps.database.absent) deps.writes.recordOn(trail)
    routes('conductor', async (app) => {
      deps.guard.protect(app)
      needsDatabase(app, deps.database)
      auditRoutes(app, deps.guard, deps.database)
    })
    return { trail }
  },
})

const description = `Newest first. An entry is written before the request is handled, so a write that happened is here
even if its server failed. Requests refused with 403 are here too; those of unknown callers are not.`.replaceAll(
  '\n',
  ' ',
)

function auditRoutes(app: App, guard: Guard, database: Database): void {
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
      const entries = await listEntries(database, guard.callerOf(request).tenantId, { ...filter, ...times })
      return sendList(request, reply, entries, { page: filter, item: ListedEntry })
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
