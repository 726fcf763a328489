import { type Static, Type } from '@sinclair/typebox'
import { access, type App, failures, notFound, unavailable } from '#kernel'
import { auditedAccess } from '#contracts/audit'
import type { Guard } from '#contracts/auth'
import type { Database, Statement } from '#contracts/database'
import { type EndUserStore, retentionErrors } from '#contracts/retention'
import { sendItems } from '#kit/lists'
import { type EndUsers, runsAlone } from './people.ts'
import { traces } from './traces.ts'

/** Rows per read. The logs of runs are larger and are read one by one. */
const atOnce = 50

const ExportedItem = Type.Object(
  { type: Type.String() },
  {
    additionalProperties: true,
    description:
      'A `conversation` {id, publishedId, createdAt}, then its `message`s {conversationId, publicRunId, role, content, failed, at}, its `run`s {conversationId, publicRunId, runId, sessionId, profile, status, prompt, metadata, result, error, usage, startedAt, finishedAt} and, after each run, its log in parts as `events` {runId, events}. Then the runs of no conversation, such as those of the API and those that were delegated. Other data of the person comes first, such as each `connection`: an account in an app, without its secret; each `memory`, with its history; what was spent of budgets that count for each person, as `budgetUse` {budgetId, per, period, spentCents}; and webhook messages that name the person, as `webhook` {id, url, state, createdAt, message}.',
  },
)
type ExportedItem = Static<typeof ExportedItem> & Record<string, unknown>

const Export = Type.Object({
  endUserId: Type.String(),
  items: Type.Array(ExportedItem, {
    description: 'In the order of conversations. A document that breaks off is not closed by `]}`.',
  }),
})

interface ExportOf {
  readonly database: Database
  readonly endUsers: Pick<EndUsers, 'conversations'>
  readonly people: ReadonlyMap<string, EndUserStore>
  readonly tenantId: string
  readonly endUserId: string
}

/** All stored data of an end user, in parts of limited size. A part is read when the client has taken the one before (back-pressure). */
async function* exported(of: ExportOf): AsyncGenerator<ExportedItem[]> {
  const { database, endUsers, people, tenantId, endUserId } = of
  const ask = async (statement: Statement): Promise<Record<string, unknown>[]> =>
    (await database.as('reads').batch<[Record<string, unknown>[]]>(tenantId, [statement]))[0]
  const read = (text: string, values: readonly unknown[]): Promise<Record<string, unknown>[]> =>
    ask({ text, values: [tenantId, ...values] })
  const typed = (type: string, rows: readonly Record<string, unknown>[]): ExportedItem[] =>
    rows.map((row) => ({ type, ...row }) as ExportedItem)

  for (const [type, store] of people) {
    for await (const items of store.items(tenantId, endUserId)) yield items.map((item) => ({ type, ...item }))
  }
  yield typed('budgetUse', await ask(traces.uses(tenantId, endUserId)))
  for (let after = '', rows; ; after = String(rows.at(-1)!['id'])) {
    rows = await ask(traces.messages(tenantId, endUserId, after, atOnce))
    if (rows.length === 0) break
    yield typed('webhook', rows)
  }
  for (let after = '', ids: string[]; ; after = ids.at(-1)!) {
    ids = await endUsers.conversations(tenantId, endUserId, after, atOnce)
    if (ids.length === 0) break
    for (const id of ids) {
      yield typed('conversation', await read(conversation, [id]))
      for (let place = '0', rows; ; place = String(rows.at(-1)!['position'])) {
        rows = await read(messages, [id, place, atOnce])
        if (rows.length === 0) break
        yield typed('message', rows)
      }
      for (let place = '', rows; ; place = String(rows.at(-1)!['publicRunId'])) {
        rows = await read(runs, [id, place, 1])
        if (rows.length === 0) break
        yield typed('run', rows)
        yield* eventsOf(read, rows[0]!['runId'])
      }
    }
  }
  for (let place = '', rows; ; place = String(rows.at(-1)!['runId'])) {
    rows = await read(alone, [endUserId, place])
    if (rows.length === 0) return
    yield typed('run', rows)
    yield* eventsOf(read, rows[0]!['runId'])
  }
}

/** The parts that have items: only the first part of a list is written without a comma. */
async function* filled<T>(parts: AsyncIterable<T[]>): AsyncGenerator<T[]> {
  for await (const part of parts) if (part.length > 0) yield part
}

async function* eventsOf(
  read: (text: string, values: readonly unknown[]) => Promise<Record<string, unknown>[]>,
  runId: unknown,
): AsyncGenerator<ExportedItem[]> {
  for (let seq = 0, row; ; seq = Number(row['first_seq'])) {
    ;[row] = await read(events, [runId, seq])
    if (!row) return
    const lines = (row['lines'] as Buffer).toString('utf8').split('\n').filter(Boolean)
    yield [{ type: 'events', runId, events: lines.map((line) => JSON.parse(line) as unknown) }]
  }
}

const conversation = `SELECT id, published_id AS "publishedId", created_at AS "createdAt" FROM conversations
  WHERE tenant_id = $1 AND id = $2`
/** Bytes of the messages of one read, unless the first one alone has more. */
const mostBytes = 1024 * 1024
const messages = `SELECT position, conversation_id AS "conversationId", public_run_id AS "publicRunId", role, content, attachments, failed, at
  FROM (SELECT *, row_number() OVER (ORDER BY position) AS nth,
      sum(octet_length(content) + coalesce(octet_length(attachments::text), 0)) OVER (ORDER BY position) AS bytes
    FROM (SELECT * FROM messages WHERE tenant_id = $1 AND conversation_id = $2 AND position > $3::bigint ORDER BY position LIMIT $4) near) weighed
  WHERE nth = 1 OR bytes <= ${mostBytes} ORDER BY position`
const ofRun = `r.id AS "runId", r.session_id AS "sessionId", r.profile, r.status, r.prompt, r.metadata, r.input, r.result, r.error_code AS error,
    r.usage, r.started_at AS "startedAt", r.finished_at AS "finishedAt"`
const runs = `SELECT p.conversation_id AS "conversationId", p.id AS "publicRunId", ${ofRun}
  FROM messages m JOIN public_runs p ON p.tenant_id = $1 AND p.id = m.public_run_id
    JOIN runs r ON r.tenant_id = $1 AND r.id = p.run_id
  WHERE m.tenant_id = $1 AND m.conversation_id = $2 AND m.role = 'user' AND p.id > $3 ORDER BY p.id LIMIT $4`
const alone = `SELECT ${ofRun} FROM ${runsAlone} ORDER BY p.run_id LIMIT 1`
const events = `SELECT first_seq, lines FROM run_events WHERE tenant_id = $1 AND run_id = $2 AND first_seq > $3 ORDER BY first_seq LIMIT 1`

/** How long a request deletes, in ms, before it leaves the rest to the next pass. */
const requestMs = 10_000

const lookedThrough =
  'The runs from before the upgrade are still being looked through for their end users; try again in some minutes.'

const tags = ['end users']
const EndUserParams = Type.Object({
  id: Type.String({ description: "The person's id, as in `metadata.end_user_id` of chats and runs." }),
})
const count = (description: string) => Type.Integer({ description })
const Erased = Type.Object({
  endUserId: Type.String(),
  conversations: count('Conversations that were erased whole, including what others said in them.'),
  messages: Type.Integer(),
  runs: count('Runs, those that they delegated included, with event logs, files and webhook messages.'),
  sessions: count('Sessions with their saved state.'),
  data: Type.Record(Type.String(), Type.Integer(), {
    description:
      'Other data, by kind, such as `connection`: accounts in apps, which are revoked as well; `memory`: memories about them.',
  }),
  pending: count(
    'Conversations and other runs that are under way, or for which there was no time, and sessions whose runner does not answer: they are erased when these are over. 0: nothing is left.',
  ),
  untoldSessions: Type.Optional(
    count(
      'Sessions of which a runner may have a copy, since it does not answer. After a day nothing waits for it any more.',
    ),
  ),
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
      ...auditedAccess('admin', 'end-users.erase', { proof: true }),
      schema: {
        tags,
        summary: 'Erase an end user',
        description:
          'Deletes their conversations with messages, public runs, runs, and all other runs with them in `metadata.end_user_id`, event logs, files, webhook messages and saved state, and other data about them, such as accounts in apps and memories. Meters stay: they have no content. May be repeated; the numbers are of all since it was first asked for.',
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
        response: { 200: Export, ...failures(notFound, unavailable) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const endUserId = idOf(request.params.id)
      if (!(await endUsers.enter(tenantId, AbortSignal.timeout(requestMs)))) {
        wake()
        throw unavailable({ message: lookedThrough })
      }
      if (!(await endUsers.isKnown(tenantId, endUserId))) throw notFound()
      const rest = filled(exported({ database, endUsers, people, tenantId, endUserId }))
      const { value: items = [] } = await rest.next()
      const document = (all: readonly ExportedItem[]) => ({ endUserId, items: all })
      return sendItems(request, reply, { items, rest }, { item: ExportedItem, document })
    },
  )
}

/** 404 for an id with a NUL: PostgreSQL cannot store it, so no end user has it. */
function idOf(text: string): string {
  if (text.includes('\0')) throw notFound()
  return text
}
