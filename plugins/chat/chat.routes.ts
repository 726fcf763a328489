import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, sse } from '#kernel'
import type { Caller } from './authenticate.ts'
import { stoppingHere, syncTimeout } from './errors.ts'
import { type Outcome, outcomeError, type RunIds } from './outcome.ts'
import { ChatBody, ChatParams, ChatReply, EventStream } from './schema.ts'
import type { ChatService } from './service.ts'
import type { SyncWaits } from './sync-wait.ts'

interface Dependencies {
  readonly chats: Pick<ChatService, 'start'>
  readonly waits: SyncWaits
  callerOf(request: FastifyRequest): Caller
  readonly heartbeatMs: number
  limit(request: FastifyRequest, reply: FastifyReply): Promise<void>
}

const tags = ['chat']
/** The conductor takes signed bodies of 1 MiB, and the message travels there with our ids beside it. */
const bodyLimit = 1_000_000

// A client that reconnects knows its run before the first event.
const nameRun = (reply: FastifyReply, { publicRunId, conversationId }: RunIds): FastifyReply =>
  reply.header('x-public-run-id', publicRunId).header('x-conversation-id', conversationId)

/** What a request tells a client whose run has no answer for it (yet). */
function noAnswer(ids: RunIds, reason: Outcome | 'timeout' | 'stopping' | undefined): Error {
  if (typeof reason === 'object') return outcomeError(ids, reason)
  const detail = { conversation_id: ids.conversationId, public_run_id: ids.publicRunId }
  return reason === 'timeout' ? syncTimeout({ detail }) : stoppingHere({ detail, retryable: true })
}

/** Chat, answered whole or as a stream. A client that leaves never ends its run. */
export function chatRoutes(app: App, { chats, waits, callerOf, limit, heartbeatMs }: Dependencies): void {
  app.post(
    '/v1/chat/:tenant/:agent',
    {
      ...access('agent-key'),
      onRequest: limit,
      bodyLimit,
      schema: { tags, params: ChatParams, body: ChatBody, response: { 200: ChatReply } },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const run = await chats.start(caller, request.body)
      nameRun(reply, run)
      const outcome = await waits.for(run.ended, caller.agent.syncMaxDurationMs)
      if (typeof outcome !== 'object' || outcome.status !== 'ok') throw noAnswer(run, outcome)
      return { conversation_id: run.conversationId, message: outcome.message, public_run_id: run.publicRunId }
    },
  )
  app.post(
    '/v1/chat/:tenant/:agent/stream',
    {
      ...access('agent-key'),
      onRequest: limit,
      bodyLimit,
      schema: { tags, params: ChatParams, body: ChatBody, response: { 200: EventStream } },
    },
    async (request, reply) => {
      const run = await chats.start(callerOf(request), request.body)
      nameRun(reply, run)
      // A run that the conductor did not take is an answer, not a stream.
      const refused = await run.dispatched
      if (refused) throw noAnswer(run, refused)
      return sse(request, reply, (signal) => run.log.follow(0, signal), { heartbeatMs })
    },
  )
}
