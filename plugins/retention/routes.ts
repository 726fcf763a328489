import { Type } from '@sinclair/typebox'
import { access, type App, failures, notFound } from '#kernel'
import { auditedAccess } from '#contracts/audit'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { type EndUserStore, retentionErrors } from '#contracts/retention'
import { sendItems } from '#kit/lists'
import type { EndUsers } from './end-users.ts'
import { Export, exported, ExportedItem } from './export.ts'

/** How long a request deletes before it leaves the rest to the next pass. */
const requestMs = 10_000

const tags = ['end users']
const EndUserParams = Type.Object({
  id: Type.String({ description: 'As chats name the person in `metadata.end_user_id`.' }),
})
const count = (description: string) => Type.Integer({ description })
const Erased = Type.Object({
  endUserId: Type.String(),
  conversations: count('Conversations that were erased whole, with those who spoke in them.'),
  messages: Type.Integer(),
  runs: count('Runs, those that they delegated included, with event logs, files and webhook messages.'),
  sessions: count('Sessions with their saved state.'),
  data: Type.Record(Type.String(), Type.Integer(), {
    description:
      'What else was kept of them, by its kind, such as `connection`: accounts in apps, which are revoked as well; `memory`: what is remembered of them.',
  }),
  pending: count('Conversations that something is under way in: they are erased when it is over. 0: nothing is left.'),
})

interface EndUserParts {
  readonly database: Database
  readonly endUsers: EndUsers
  readonly people: ReadonlyMap<string, EndUserStore>
}

export function endUserRoutes(
  app: App,
  guard: Guard,
  { database, endUsers, people }: EndUserParts,
  wake: () => void,
): void {
  app.delete(
    '/api/end-users/:id',
    {
      ...auditedAccess('admin', 'end-users.erase'),
      schema: {
        tags,
        summary: 'Erase an end user',
        description:
          'Deletes their conversations with messages, public runs, runs, event logs, files, webhook messages and saved state, and what else is kept of them, such as accounts in apps and memories. Meters stay: they hold no content. May be repeated.',
        params: EndUserParams,
        response: { 200: Erased, ...failures(notFound, retentionErrors.legalHold) },
      },
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const endUserId = idOf(request.params.id)
      const erased = await endUsers.request(tenantId, endUserId, AbortSignal.timeout(requestMs))
      if (erased.pending > 0) wake()
      return { endUserId, ...erased }
    },
  )
  app.get(
    '/api/end-users/:id/export',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Export what is stored of an end user',
        description: 'Streamed while it is read.',
        params: EndUserParams,
        response: { 200: Export, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const endUserId = idOf(request.params.id)
      const [known] = await endUsers.conversations(tenantId, endUserId, '', 1)
      if (known === undefined && !(await endUsers.isElsewhere(tenantId, endUserId))) throw notFound()
      const rest = exported({ database, endUsers, people, tenantId, endUserId })
      const { value: items = [] } = await rest.next()
      const document = (all: readonly ExportedItem[]) => ({ endUserId, items: all })
      return sendItems(request, reply, { items, rest }, { item: ExportedItem, document })
    },
  )
}

/** PostgreSQL stores no NUL: nobody has such an id. */
function idOf(text: string): string {
  if (text.includes('\0')) throw notFound()
  return text
}
