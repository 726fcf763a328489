import type { FastifyRequest } from 'fastify'
import { access, type App, failure, isAppError, lastEventId, NoContent, notFound, sse } from '#kernel'
import type { Database } from '#contracts/database'
import { isId } from '#contracts/ids'
import type { RunDispatch } from '#contracts/runs'
import type { Caller } from './authenticate.ts'
import { conversationNotFound } from './errors.ts'
import { readHistory } from './history.store.ts'
import { outcomeError, terminalFrame } from './outcome.ts'
import { followElsewhere } from './resume.ts'
import { findRun, type StoredRun } from './runs.store.ts'
import {
  ConversationParams,
  EventStream,
  History,
  HistoryQuery,
  refusals,
  RunAnswer,
  RunParams,
  RunPending,
} from './schema.ts'
import type { Watcher, Watchers } from './watchers.ts'

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
  readonly watchers: Watchers
  callerOf(request: FastifyRequest): Caller
  readonly heartbeatMs: number
}

const tags = ['chat']

/** What a client may ask about its runs and conversations. Those of another agent do not exist for it. */
export function runRoutes(app: App, { database, dispatch, watchers, callerOf, heartbeatMs }: Dependencies): void {
  const watched = ({ tenantId, agent }: Caller, id: string): Watcher | undefined => {
    const watcher = watchers.get(id)
    return watcher?.tenantId === tenantId && watcher.publishedId === agent.id ? watcher : undefined
  }
  const stored = async ({ tenantId, agent }: Caller, id: string): Promise<StoredRun> => {
    const run = isId('prun', id) ? await findRun(database, tenantId, id) : undefined
    if (run?.publishedId !== agent.id) throw notFound()
    return run
  }

  app.get(
    '/v1/chat/:tenant/:agent/runs/:publicRunId',
    {
      ...access('agent-key'),
      schema: {
        tags,
        summary: 'Get the answer of a run',
        description: '202 until it has ended; then the same answer for ever.',
        params: RunParams,
        response: {
          200: RunAnswer,
          202: RunPending,
          ...refusals,
          410: failure('`lost`: the run was lost in a restart; send the message again.'),
          502: failure('`upstream`: the run failed. With `public_run_id` and `conversation_id`.'),
        },
      },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const run = await stored(caller, request.params.publicRunId)
      const ids = { public_run_id: run.publicRunId, conversation_id: run.conversationId }
      if (!run.outcome) {
        // The watcher knows sooner than the row.
        const started = run.status === 'running' || watched(caller, run.publicRunId)?.sessionId !== undefined
        return reply.code(202).send({ ...ids, status: started ? 'running' : 'dispatching' })
      }
      if (run.outcome.status !== 'ok') throw outcomeError(run, run.outcome)
      return reply.send({ ...ids, message: run.outcome.message, status: 'ok' })
    },
  )
  app.get(
    '/v1/chat/:tenant/:agent/runs/:publicRunId/stream',
    {
      ...access('agent-key'),
      schema: {
        tags,
        summary: 'Follow a run',
        description:
          'From its first event, or behind the one that `Last-Event-ID` names, to `done` or `error`. Of a run that has ended, that one event.',
        params: RunParams,
        response: { 200: EventStream, ...refusals },
      },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const after = lastEventId(request)
      const watcher = watched(caller, request.params.publicRunId)
      const run = watcher ?? (await stored(caller, request.params.publicRunId))
      void reply.header('x-public-run-id', run.publicRunId).header('x-conversation-id', run.conversationId)
      if (watcher) return sse(request, reply, (signal) => watcher.log.follow(after, signal), { heartbeatMs })
      const { outcome } = run as StoredRun
      const { exposeToolEvents } = caller.agent
      const source = (signal: AbortSignal): AsyncGenerator<string> =>
        outcome
          ? once(terminalFrame(run, outcome))
          : followElsewhere({ database, dispatch }, run as StoredRun, { exposeToolEvents, afterSeq: after }, signal)
      return sse(request, reply, source, { heartbeatMs })
    },
  )
  app.delete(
    '/v1/chat/:tenant/:agent/runs/:publicRunId',
    {
      ...access('agent-key'),
      schema: {
        tags,
        summary: 'Cancel a run',
        description: 'One that has ended stays as it is.',
        params: RunParams,
        response: { 204: NoContent, ...refusals, 502: failure('`upstream`: the conductor cannot be reached.') },
      },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const run = await stored(caller, request.params.publicRunId)
      // Before the conductor took the run there is nothing it could cancel.
      await watched(caller, run.publicRunId)?.dispatched
      // A finished run keeps its status, and one that the conductor does not know is not under way.
      if (!run.outcome) await dispatch.cancel(run.tenantId, run.runId).catch(unlessUnknown)
      return reply.code(204).send()
    },
  )
  app.get(
    '/v1/chat/:tenant/:agent/conversations/:id',
    {
      ...access('agent-key'),
      schema: {
        tags,
        summary: 'Read a conversation',
        description: 'Its newest messages, oldest first.',
        params: ConversationParams,
        querystring: HistoryQuery,
        response: {
          200: History,
          ...refusals,
          404: failure('`conversation_not_found`, or `not_published`: the agent is disabled.'),
        },
      },
    },
    async (request) => {
      const { tenantId, agent } = callerOf(request)
      const { limit, include } = request.query
      const { id } = request.params
      const options = { limit, withErrors: include === 'errors' }
      const history = isId('conv', id) ? await readHistory(database, tenantId, agent.id, id, options) : undefined
      if (!history) throw conversationNotFound()
      return history
    },
  )
}

function unlessUnknown(error: unknown): void {
  if (!isAppError(error) || error.code !== 'not_found') throw error
}

async function* once(frame: string): AsyncGenerator<string> {
  yield frame
}
