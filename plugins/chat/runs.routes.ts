import { access, type App, failures, isAppError, lastEventId, NoContent, sse } from '#kernel'
import type { Database } from '#contracts/database'
import { isId } from '#contracts/ids'
import type { Listing } from '#contracts/paging'
import { runErrors } from '#contracts/run-errors'
import { type RunDispatch } from '#contracts/runs'
import { sendItems } from '#kit/lists'
import { callerOf, type ChatCaller } from './admission.ts'
import { chatErrors } from './errors.ts'
import { bodyIds, findRun, type Follower, idHeaders, type StoredRun } from './public-run.ts'
import {
  ConversationParams,
  EventStream,
  History,
  HistoryQuery,
  Message,
  refusals,
  RunAnswer,
  RunParams,
  RunPending,
} from './schema.ts'
import { noAnswer } from './refusal.ts'

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
  readonly follower: Follower
  readonly heartbeatMs: number
}

const tags = ['chat']

/** The routes for a client's runs. Runs of another agent do not exist for the client. */
export function runRoutes(app: App, { database, dispatch, follower, heartbeatMs }: Dependencies): void {
  const stored = async ({ tenantId, agent }: ChatCaller, id: string): Promise<StoredRun> => {
    const run = isId('prun', id) ? await findRun(database, tenantId, id) : undefined
    if (run?.publishedId !== agent.id) throw chatErrors.notFound()
    return run
  }

  app.get(
    '/v1/chat/:tenant/:agent/runs/:publicRunId',
    {
      ...access('agent-key'),
      schema: {
        tags,
        summary: 'Get the answer of a run',
        description: '202 until it has ended; then always the same answer.',
        params: RunParams,
        response: {
          200: RunAnswer,
          202: RunPending,
          ...failures(...refusals, chatErrors.notFound, chatErrors.lost, chatErrors.upstream),
        },
      },
    },
    async (request, reply) => {
      const run = await stored(callerOf(request), request.params.publicRunId)
      const { outcome, status } = run
      if (!outcome) return reply.code(202).send({ ...bodyIds(run), status: status as 'dispatching' | 'running' })
      if (outcome.status !== 'ok') throw noAnswer(run, outcome)
      return reply.send({ ...bodyIds(run), message: outcome.message, status: 'ok' })
    },
  )
  app.get(
    '/v1/chat/:tenant/:agent/runs/:publicRunId/stream',
    {
      ...access('agent-key', { stream: true }),
      schema: {
        tags,
        summary: 'Follow a run',
        description:
          'From its first event, or after the one that `Last-Event-ID` names, to `done` or `error`. A run that has ended has only that event.',
        params: RunParams,
        response: { 200: EventStream, ...failures(...refusals, chatErrors.notFound) },
      },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const run = await stored(caller, request.params.publicRunId)
      const { exposeToolEvents } = caller.agent
      const reading = { afterSeq: lastEventId(request), exposeToolEvents, over: run.outcome }
      const source = (signal: AbortSignal) => follower.frames(run, reading, signal)
      return sse(request, reply.headers(idHeaders(run)), source, { heartbeatMs })
    },
  )
  app.delete(
    '/v1/chat/:tenant/:agent/runs/:publicRunId',
    {
      ...access('agent-key'),
      schema: {
        tags,
        summary: 'Cancel a run',
        description: 'A run that has ended stays unchanged.',
        params: RunParams,
        response: { 204: NoContent, ...failures(...refusals, chatErrors.notFound, chatErrors.upstream) },
      },
    },
    async (request, reply) => {
      const run = await stored(callerOf(request), request.params.publicRunId)
      // A finished run keeps its status, and one that the conductor does not know is not under way.
      if (!run.outcome) await dispatch.cancel(run.tenantId, run.runId).catch(unlessUnknown)
      return reply.code(204).send()
    },
  )
}

/** The routes for a client's conversations. */
export function conversationRoutes(app: App, { database }: Pick<Dependencies, 'database'>): void {
  app.get(
    '/v1/chat/:tenant/:agent/conversations/:id',
    {
      ...access('agent-key'),
      schema: {
        tags,
        summary: 'Read a conversation',
        description: 'Its newest messages, oldest first, complete; streamed when they are more than a megabyte.',
        params: ConversationParams,
        querystring: HistoryQuery,
        response: {
          200: History,
          ...failures(...refusals, runErrors.conversationNotFound),
        },
      },
    },
    async (request, reply) => {
      const { tenantId, agent } = callerOf(request)
      const { limit, include } = request.query
      const { id } = request.params
      const options = { limit, withErrors: include === 'errors' }
      const history = isId('conv', id) ? await readHistory(database, tenantId, agent.id, id, options) : undefined
      if (!history) throw runErrors.conversationNotFound()
      const document = (messages: readonly Message[]): History => ({ conversation_id: id, messages: [...messages] })
      return sendItems(request, reply, history, { item: Message, document })
    },
  )
}

function unlessUnknown(error: unknown): void {
  if (!isAppError(error) || error.code !== 'not_found') throw error
}

interface MessageRow {
  role: string
  content: string
  at: string
  public_run_id: string
  attachments: Message['attachments'] | null
  position: number
  newest: number
}

const conversation = {
  name: 'chat-conversation',
  text: `SELECT 1 FROM conversations WHERE tenant_id = $1 AND id = $2 AND published_id = $3`,
}
/** Approximate bytes of messages per read; a larger message is read alone. */
const readBytes = 1024 * 1024
// The length of a text is known without reading it. `newest`: the position of the last requested message.
const messages = {
  name: 'chat-messages',
  text: `SELECT role, content, at, public_run_id, attachments, position, newest FROM (
           SELECT *, max(position) OVER () AS newest,
             sum(octet_length(content)) OVER (ORDER BY position) - octet_length(content) AS before
           FROM (
             SELECT role, content, at, public_run_id, attachments, position FROM messages
             WHERE tenant_id = $1 AND conversation_id = $2 AND (NOT failed OR $4) AND position > $5 AND position <= $6
             ORDER BY position DESC LIMIT $3
           ) asked
         ) sized WHERE before < ${readBytes} ORDER BY position`,
}

/** The newest messages of a conversation of this agent, oldest first, read in portions where they are large. Undefined for any other conversation. */
async function readHistory(
  database: Database,
  tenantId: string,
  publishedId: string,
  id: string,
  { limit, withErrors }: { limit: number; withErrors: boolean },
): Promise<Pick<Listing<Message>, 'items' | 'rest'> | undefined> {
  const between = (after: number, upTo: number) => ({
    ...messages,
    values: [tenantId, id, limit, withErrors, after, upTo],
  })
  const reads = database.as('reads')
  const [found, rows] = await reads.batch<[object[], MessageRow[]]>(tenantId, [
    { ...conversation, values: [tenantId, id, publishedId] },
    between(0, Number.MAX_SAFE_INTEGER),
  ])
  if (found.length === 0) return undefined
  const items = rows.map(toMessage)
  const last = rows.at(-1)
  if (!last || last.position === last.newest) return { items }
  const rest = async function* () {
    for (let at = last.position; at < last.newest;) {
      const [more] = await reads.batch<[MessageRow[]]>(tenantId, [between(at, last.newest)])
      if (more.length === 0) return
      yield more.map(toMessage)
      at = more.at(-1)!.position
    }
  }
  return { items, rest: rest() }
}

const toMessage = ({ role, content, at, public_run_id, attachments }: MessageRow): Message => ({
  role,
  content,
  at,
  // The answer names the run, so the client's own message need not.
  ...(role === 'assistant' ? { public_run_id } : {}),
  ...(attachments ? { attachments } : {}),
})
