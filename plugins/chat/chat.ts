import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, type AppError, failures, invalidField, sse } from '#kernel'
import type { Database } from '#contracts/database'
import { type Attempt, type Idempotency, IdempotencyHeaders } from '#contracts/idempotency'
import { isId, newId } from '#contracts/ids'
import { decodeBase64 } from '#contracts/prompt'
import { runErrors } from '#contracts/run-errors'
import { type DispatchTask, endingOnly, type RunDispatch, type StartedRun } from '#contracts/runs'
import { callerOf, type ChatCaller } from './admission.ts'
import { chatErrors, invalidKey } from './errors.ts'
import {
  bodyIds,
  findRun,
  type Follower,
  type Frames,
  idHeaders,
  type PublicRun,
  type Reading,
  type Told,
} from './public-run.ts'
import { ChatBody, ChatParams, chatRefusals, ChatReply, EventStream } from './schema.ts'
import type { GaveUp, SyncWaits, Within } from './sync-waits.ts'
import { beganNothing, noAnswer, refusal } from './refusal.ts'

interface ChatParts {
  readonly database: Database
  readonly dispatch: RunDispatch
  readonly idempotency: Idempotency
  readonly follower: Follower
  readonly log: FastifyBaseLogger
  /** Tenants for which a run was accepted, or may have been. The ingress meter counts their requests. */
  readonly accepted: Set<string>
  /** Tenants with a stored public run whose start is in doubt, for the sweep to check. */
  readonly doubtful: Set<string>
  readonly waits: SyncWaits
  readonly heartbeatMs: number
  limit(request: FastifyRequest, reply: FastifyReply): Promise<void>
}

/** The conductor takes signed bodies of 1 MiB, and the message travels there with our ids beside it. */
const bodyLimit = 1_000_000

/** Chat, answered whole or as a stream. A client that leaves never ends its run. */
export function chatRoutes(app: App, parts: ChatParts): void {
  const { waits, heartbeatMs, limit } = parts
  const route = { onRequest: limit, bodyLimit }
  const asked = { tags: ['chat'], params: ChatParams, headers: IdempotencyHeaders, body: ChatBody }
  app.post(
    '/v1/chat/:tenant/:agent',
    {
      ...access('agent-key'),
      ...route,
      schema: {
        ...asked,
        summary: 'Send a message and wait for the answer',
        description:
          'Without `conversation_id` a conversation begins. A client that leaves does not end the run: fetch it by `public_run_id`, which is in the header `X-Public-Run-Id`, too.',
        response: {
          200: ChatReply,
          ...failures(...chatRefusals, chatErrors.lost, chatErrors.syncTimeout),
        },
      },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const chat = await openChat(parts, caller, request.body, request.headers['idempotency-key'])
      try {
        const told = await waits.for((within) => chat.ended(within), caller, reply.raw)
        if (typeof told === 'string' && told !== 'unreachable') await chat.leave(told)
        if (told === 'revoked') {
          // Or the agent was switched off, and is not found by those who ask now.
          await caller.renew()
          throw invalidKey()
        }
        void reply.headers(idHeaders(chat.run))
        if (typeof told === 'string' || told.status !== 'ok') throw noAnswer(chat.run, told)
        return { ...bodyIds(chat.run), message: told.message }
      } finally {
        await chat.settle()
      }
    },
  )
  app.post(
    '/v1/chat/:tenant/:agent/stream',
    {
      ...access('agent-key', { stream: true }),
      ...route,
      schema: {
        ...asked,
        summary: 'Send a message and stream the answer',
        description:
          'Without `conversation_id` a conversation begins; both ids are headers of the answer. After a lost connection, resume with the stream of the run.',
        response: { 200: EventStream, ...failures(...chatRefusals) },
      },
    },
    async (request, reply) => {
      const chat = await openChat(parts, callerOf(request), request.body, request.headers['idempotency-key'])
      const frames = await chat.start(0).finally(() => chat.settle())
      return sse(request, reply.headers(idHeaders(chat.run)), () => frames, { heartbeatMs, abort: chat.left })
    },
  )
}

/**
 * Checks a request and gives its chat ids; with an `Idempotency-Key` it reuses the ids that the first request with the key chose. Answers are never
 * stored: a repeat joins the run by its id, whichever process began the run and however it ended. The synchronous and the streamed call share keys,
 * so a client that falls back from one to the other gets the same run.
 */
async function openChat(parts: ChatParts, caller: ChatCaller, body: ChatBody, key: string | undefined): Promise<Chat> {
  check(body)
  const { tenantId, keyId } = caller
  const plan = {
    conversationId: body.conversation_id ?? newId('conv'),
    publicRunId: newId('prun'),
    runId: newId('run'),
  }
  if (key === undefined) return new Chat(parts, caller, body, plan)
  const attempt = await parts.idempotency.begin({ tenantId, scope: `${keyId} chat`, key, body, plan })
  return new Chat(parts, caller, body, attempt.plan, attempt)
}

type Ids = Pick<PublicRun, 'conversationId' | 'publicRunId' | 'runId'>

/** A requested chat, under the ids that its run has or will have once it is begun. */
class Chat {
  readonly run: PublicRun & { replayed?: boolean }
  /** Stops reading the run. It is separate from the request's signal, because a client that disconnects during the start must not undo the start. */
  readonly left = new AbortController()
  readonly #parts: ChatParts
  #caller: ChatCaller
  readonly #body: ChatBody
  readonly #attempt: Attempt<Ids> | undefined
  /** `joined`: an earlier request with the same key began the run. `refused`: the run was certainly not begun. */
  #state: 'new' | 'begun' | 'joined' | 'refused' = 'new'
  #deserted = false
  #within: Within = () => {}

  constructor(parts: ChatParts, caller: ChatCaller, body: ChatBody, ids: Ids, attempt?: Attempt<Ids>) {
    this.run = { tenantId: caller.tenantId, publishedId: caller.agent.id, ...ids }
    this.#parts = parts
    this.#caller = caller
    this.#body = body
    this.#attempt = attempt
  }

  /**
   * Has the conductor begin the run, or joins the run that an earlier request with the key began. Resolves to its frames. Rejects with the client's
   * error; if the error names the run, the run may have begun.
   */
  async start(afterSeq: number): Promise<Frames> {
    const { database, accepted } = this.#parts
    const { tenantId, publicRunId } = this.run
    const earlier = this.#attempt?.repeated ? await findRun(database, tenantId, publicRunId) : undefined
    if (earlier) {
      this.#state = 'joined'
      this.run.replayed = true
      const { outcome } = earlier
      // The run ended before the conductor had taken it, so the client gets an error answer instead of a stream.
      if (outcome && outcome.status !== 'ok' && outcome.seq === 0) throw noAnswer(this.run, outcome)
      // A repeated stream starts from its beginning, even when the end is known.
      if (outcome) return this.#frames(afterSeq, afterSeq === endingOnly ? { over: outcome } : {})
    }
    // An open run is started again under the same ids, which the conductor does at most once. Until a caller was told of the run it may be taken
    // back, so the conductor must know that somebody waits for it.
    try {
      const { events } = await this.#begin(afterSeq)
      if (this.#state === 'new') this.#state = 'begun'
      accepted.add(tenantId)
      return this.#frames(afterSeq, { events })
    } catch (error) {
      // The refusal concerns a new run. An earlier run that is still stored continues, so join it.
      const goesOn = earlier?.status === 'running' && beganNothing(error) && (await this.#isStored())
      if (goesOn) return this.#frames(afterSeq, {})
      throw await this.#failed(error)
    }
  }
  async #isStored(): Promise<boolean> {
    const { tenantId, publicRunId } = this.run
    return (await findRun(this.#parts.database, tenantId, publicRunId)) !== undefined
  }

  /** Starts the run. When nothing was started for a caller from memory, the caller is read from the database and the start is retried once. */
  async #begin(afterSeq: number): Promise<StartedRun> {
    const { dispatch } = this.#parts
    const start = () => dispatch.start(this.run.tenantId, this.#task(), afterSeq, this.left.signal)
    const { isRemembered, renew } = this.#caller
    if (!isRemembered) return start()
    try {
      return await start()
    } catch (error) {
      if (!beganNothing(error) || (error.status < 500 && error.code !== 'admission_stale')) throw error
      this.#caller = await renew()
      this.#within(this.#caller.agent.syncMaxDurationMs)
      return start()
    }
  }

  /** Starts or joins the run, and resolves to how it ended. `within` is told how long the agent lets a call wait, as soon as that is known. */
  async ended(within: Within): Promise<Told> {
    this.#within = within
    within(this.#caller.agent.syncMaxDurationMs)
    const frames = await this.start(endingOnly)
    if (this.#deserted) this.left.abort('client_gone')
    for (;;) {
      const { done, value } = await frames.next()
      if (done) return value
    }
  }

  /** The call stops waiting for the end. If the run was not started yet, its ids are stored, so that the client can ask for it later. */
  async leave(why: GaveUp): Promise<void> {
    this.#deserted = true
    if (this.#state !== 'new') this.left.abort('client_gone')
    else if (why !== 'gone') await this.#keepIds()
  }

  /**
   * Releases the idempotency key. It is called before the answer, so that a client that repeats the request finds the key free. A refused request
   * forgets its key, unless an earlier request with the key may still be starting the run.
   */
  async settle(): Promise<void> {
    if (this.#state === 'refused' && !this.#attempt?.repeated) await this.#attempt?.forget()
    else await this.#attempt?.end()
  }

  #frames(afterSeq: number, known: Pick<Reading, 'events' | 'over'>): Frames {
    const { exposeToolEvents } = this.#caller.agent
    return this.#parts.follower.frames(this.run, { ...known, afterSeq, exposeToolEvents }, this.left.signal)
  }

  async #failed(error: unknown): Promise<AppError> {
    const refused = beganNothing(error)
    const { publicRunId } = this.run
    if (!refused || error.status >= 500) this.#parts.log.warn({ err: error, publicRunId }, 'chat.start_watcher_failed')
    if (!refused) {
      await this.#keepIds()
      return noAnswer(this.run, 'unreachable', error)
    }
    if (this.#state === 'new') this.#state = 'refused'
    return refusal(error)
  }

  async #keepIds(): Promise<void> {
    const { database, accepted, doubtful, log } = this.#parts
    const { tenantId, conversationId } = this.run
    doubtful.add(tenantId)
    accepted.add(tenantId)
    const known = await keepInDoubt(database, this.run, this.#body).catch((err: unknown) => {
      log.error({ err, conversationId }, 'chat.resolve_conv_failed')
      return true
    })
    if (known) return
    this.#state = 'refused'
    throw runErrors.conversationNotFound()
  }

  #task(): DispatchTask {
    const { publicRunId, conversationId, publishedId, runId } = this.run
    const { keyId, agent, isRemembered } = this.#caller
    const { profile, webhookUrl, revision } = agent
    const { message, metadata, attachments, conversation_id: before } = this.#body
    const endUserId = endUserOf(this.#body)
    const chat = {
      publicRunId,
      conversationId,
      publishedId,
      continued: before !== undefined,
      keyId,
      ...(isRemembered ? { admission: { keyId, revision } } : {}),
    }
    return {
      id: runId,
      profile,
      prompt: message,
      ...(attachments?.length ? { attachments } : {}),
      metadata: { ...metadata, conversation_id: conversationId, public_run_id: publicRunId },
      ...(webhookUrl === null ? {} : { webhook: { url: webhookUrl } }),
      chat: endUserId === undefined ? chat : { ...chat, endUserId },
    }
  }
}

/** An empty id names nobody, as everywhere else. */
const endUserOf = ({ metadata }: ChatBody): string | undefined => metadata?.end_user_id || undefined

// If the row exists, the conductor's start wrote it in one commit with the run.
const keep = {
  name: 'chat-keep',
  text: `WITH fresh AS (
           INSERT INTO conversations (tenant_id, id, published_id, end_user_id) SELECT $1, $2, $3, $6 WHERE NOT $9
           ON CONFLICT DO NOTHING RETURNING id),
         conversation AS (
           SELECT id FROM fresh
           UNION ALL
           SELECT id FROM conversations WHERE tenant_id = $1 AND id = $2 AND published_id = $3),
         run AS (
           INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, end_user_id)
           SELECT $1, $4, $3, id, $5, $6 FROM conversation
           ON CONFLICT DO NOTHING RETURNING conversation_id),
         message AS (
           INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, attachments)
           SELECT $1, conversation_id, $4, 'user', $7, $8::json FROM run
           ON CONFLICT DO NOTHING)
         SELECT id FROM conversation`,
}

/**
 * Stores a chat that the conductor may or may not have begun as `dispatching`, so that its client can ask for it. Writes nothing when the run
 * exists. False: the chat continues a conversation that this agent does not have.
 */
export async function keepInDoubt(database: Database, run: PublicRun, body: ChatBody): Promise<boolean> {
  const { tenantId, conversationId, publishedId, publicRunId, runId } = run
  const { message, attachments } = body
  const continued = body.conversation_id !== undefined
  const shown = attachments?.map(({ name, mediaType }) => ({ name, mediaType }))
  const rest = [endUserOf(body) ?? null, message, shown?.length ? JSON.stringify(shown) : null, continued]
  const values = [tenantId, conversationId, publishedId, publicRunId, runId, ...rest]
  const rows = await database.unit(tenantId, { ...keep, values }, { order: conversationId, bytes: message.length })
  return rows.length > 0 || !continued
}

/** Checks what the schema cannot express. PostgreSQL stores no NUL. */
function check({ message, metadata, attachments, conversation_id: continued }: ChatBody): void {
  const noNul = (path: string, text = ''): void => {
    if (text.includes('\0')) throw invalidField(path, 'must not contain NUL characters')
  }
  noNul('body/message', message)
  noNul('body/metadata/end_user_id', metadata?.end_user_id)
  for (const [i, { data, upload }] of (attachments ?? []).entries()) {
    if ((data === undefined) === (upload === undefined))
      throw invalidField(`body/attachments/${i}`, 'must have either data or upload')
    if (data !== undefined && !decodeBase64(data)) throw invalidField(`body/attachments/${i}/data`, 'must be base64')
  }
  if (continued !== undefined && !isId('conv', continued)) throw runErrors.conversationNotFound()
}
