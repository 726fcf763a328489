import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failure, sse } from '#kernel'
import { IdempotencyHeaders, replayedHeader } from '#contracts/idempotency'
import type { Caller } from './authenticate.ts'
import { stoppingHere, syncTimeout } from './errors.ts'
import type { BeginOnce, Begun } from './once.ts'
import { type Outcome, outcomeError, type RunIds } from './outcome.ts'
import { ChatBody, ChatParams, chatRefusals, ChatReply, EventStream } from './schema.ts'
import type { SyncWaits } from './sync-wait.ts'

interface Dependencies {
  readonly begin: BeginOnce
  readonly waits: SyncWaits
  callerOf(request: FastifyRequest): Caller
  readonly heartbeatMs: number
  limit(request: FastifyRequest, reply: FastifyReply): Promise<void>
}

const tags = ['chat']
/** The conductor takes signed bodies of 1 MiB, and the message travels there with our ids beside it. */
const bodyLimit = 1_000_000

// A client that reconnects knows its run before the first event.
function nameRun(reply: FastifyReply, { chat, replayed }: Begun): void {
  void reply.header('x-public-run-id', chat.publicRunId).header('x-conversation-id', chat.conversationId)
  if (replayed) void reply.headers(replayedHeader)
}

/** What a request tells a client whose run has no answer for it (yet). */
function noAnswer(ids: RunIds, reason: Outcome | 'timeout' | 'stopping' | undefined): Error {
  if (typeof reason === 'object') return outcomeError(ids, reason)
  const detail = { conversation_id: ids.conversationId, public_run_id: ids.publicRunId }
  return reason === 'timeout' ? syncTimeout({ detail }) : stoppingHere({ detail, retryable: true })
}

/** Chat, answered whole or as a stream. A client that leaves never ends its run. */
export function chatRoutes(app: App, { begin, waits, callerOf, limit, heartbeatMs }: Dependencies): void {
  app.post(
    '/v1/chat/:tenant/:agent',
    {
      ...access('agent-key'),
      onRequest: limit,
      bodyLimit,
      schema: {
        tags,
        summary: 'Send a message and wait for the answer',
        description:
          'Without `conversation_id` a conversation begins. A client that leaves does not end the run: fetch it by `public_run_id`, which is in the header `X-Public-Run-Id`, too.',
        params: ChatParams,
        headers: IdempotencyHeaders,
        body: ChatBody,
        response: {
          200: ChatReply,
          ...chatRefusals,
          410: failure('`lost`: the run was lost in a restart; send the message again.'),
          504: failure(
            '`sync_timeout`: it takes longer than the agent lets such a call take; the run goes on. With `public_run_id` and `conversation_id`.',
          ),
        },
      },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const begun = await begin(caller, request.body, request.headers['idempotency-key'])
      nameRun(reply, begun)
      const { chat } = begun
      const ended = (signal: AbortSignal): Promise<Outcome | undefined> => chat.ended(signal)
      const outcome = await waits.for(ended, caller.agent.syncMaxDurationMs).catch(async (error: unknown) => {
        await begun.settle()
        throw error
      })
      await begun.settle(typeof outcome === 'object' ? outcome : undefined)
      if (typeof outcome !== 'object' || outcome.status !== 'ok') throw noAnswer(chat, outcome)
      return { conversation_id: chat.conversationId, message: outcome.message, public_run_id: chat.publicRunId }
    },
  )
  app.post(
    '/v1/chat/:tenant/:agent/stream',
    {
      ...access('agent-key'),
      onRequest: limit,
      bodyLimit,
      schema: {
        tags,
        summary: 'Send a message and stream the answer',
        description:
          'Without `conversation_id` a conversation begins; both ids are headers of the answer. After a cut, resume with the stream of the run.',
        params: ChatParams,
        headers: IdempotencyHeaders,
        body: ChatBody,
        response: { 200: EventStream, ...chatRefusals },
      },
    },
    async (request, reply) => {
      const begun = await begin(callerOf(request), request.body, request.headers['idempotency-key'])
      nameRun(reply, begun)
      const { chat } = begun
      // A run that the conductor did not take is an answer, not a stream.
      const refused = await chat.dispatched
      await begun.settle(refused)
      if (refused) throw noAnswer(chat, refused)
      return sse(request, reply, (signal) => chat.follow(signal), { heartbeatMs })
    },
  )
}
