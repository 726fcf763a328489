import type { ServerResponse } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failure, sse } from '#kernel'
import { IdempotencyHeaders } from '#contracts/idempotency'
import { endingOnly } from '#contracts/runs'
import type { Caller } from './authenticate.ts'
import { type Chats, ending } from './chats.ts'
import { noAnswer } from './errors.ts'
import { idHeaders } from './public-run.ts'
import { ChatBody, ChatParams, chatRefusals, ChatReply, EventStream } from './schema.ts'

interface Dependencies {
  readonly chats: Chats
  readonly waits: SyncWaits
  callerOf(request: FastifyRequest): Caller
  readonly heartbeatMs: number
  limit(request: FastifyRequest, reply: FastifyReply): Promise<void>
}

const tags = ['chat']
/** The conductor takes signed bodies of 1 MiB, and the message travels there with our ids beside it. */
const bodyLimit = 1_000_000

/** Chat, answered whole or as a stream. A client that leaves never ends its run. */
export function chatRoutes(app: App, { chats, waits, callerOf, limit, heartbeatMs }: Dependencies): void {
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
      const chat = await chats.open(caller, request.body, request.headers['idempotency-key'])
      try {
        const answer = async (signal: AbortSignal) => ending((await chat.start(endingOnly))(signal))
        const told = await waits.for(answer, caller.agent.syncMaxDurationMs, reply.raw)
        if (told === 'timeout' || told === 'stopping') await chat.leave()
        void reply.headers(idHeaders(chat))
        if (typeof told === 'string' || told.status !== 'ok') throw noAnswer(chat, told)
        return { conversation_id: chat.conversationId, message: told.message, public_run_id: chat.publicRunId }
      } finally {
        await chat.settle()
      }
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
      const chat = await chats.open(callerOf(request), request.body, request.headers['idempotency-key'])
      const follow = await chat.start(0).finally(() => chat.settle())
      return sse(request, reply.headers(idHeaders(chat)), follow, { heartbeatMs })
    },
  )
}

/** Why a synchronous call waits no longer. `gone`: its client has left, so nobody reads the answer. */
type GaveUp = 'timeout' | 'stopping' | 'gone'

/** Waits of synchronous calls. When the server stops they get `drainMs` more, so that most calls under way still get their answer. */
export function createSyncWaits(stopping: AbortSignal, drainMs: number) {
  const giveUps = new Set<() => void>()
  let drained = false
  const stop = (): void => {
    setTimeout(() => {
      drained = true
      for (const giveUp of giveUps) giveUp()
    }, drainMs).unref()
  }
  if (stopping.aborted) stop()
  else stopping.addEventListener('abort', stop, { once: true })
  return {
    /** What `work` resolves to, or why there is nothing yet; then its signal aborts. */
    async for<T>(work: (signal: AbortSignal) => Promise<T>, ms: number, client: ServerResponse): Promise<T | GaveUp> {
      if (drained) return 'stopping'
      const over = new AbortController()
      const { promise, resolve, reject } = Promise.withResolvers<T | GaveUp>()
      const end = (why: GaveUp): void => {
        resolve(why)
        over.abort('client_gone')
      }
      const giveUp = (): void => end('stopping')
      const gone = (): void => end('gone')
      const timer = setTimeout(() => end('timeout'), ms)
      giveUps.add(giveUp)
      client.once('close', gone)
      work(over.signal).then(resolve, reject)
      try {
        return await promise
      } finally {
        clearTimeout(timer)
        giveUps.delete(giveUp)
        client.off('close', gone)
      }
    },
  }
}
type SyncWaits = ReturnType<typeof createSyncWaits>
