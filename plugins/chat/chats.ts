import type { FastifyBaseLogger } from 'fastify'
import type { AppError } from '#kernel'
import type { Database } from '#contracts/database'
import type { Attempt, Idempotency } from '#contracts/idempotency'
import { isId, newId } from '#contracts/ids'
import { isBase64 } from '#contracts/prompt'
import { type DispatchTask, endingOnly, type RunDispatch } from '#contracts/runs'
import type { Agent, Caller } from './authenticate.ts'
import { beganNothing, conversationNotFound, invalidField, noAnswer, refusal } from './errors.ts'
import { findRun, type Follower, type Frames, type PublicRun, type Reading, type Told } from './public-run.ts'
import type { ChatBody } from './schema.ts'

type Ids = Pick<PublicRun, 'conversationId' | 'publicRunId' | 'runId'>

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
  readonly idempotency: Idempotency
  readonly follower: Follower
  readonly log: FastifyBaseLogger
  /** A run of the tenant may be there: from here on the request counts. */
  onAccepted(tenantId: string): void
  /** A run of the tenant was stored that may never be begun. */
  onDoubt(tenantId: string): void
}

export const createChats = (deps: Dependencies) => ({
  /**
   * Checks a request and gives its chat its ids; with an `Idempotency-Key` those that the first request of the key chose.
   * What was answered is never stored: a repeat joins the run by its id, whichever process began it and however it ended.
   * The synchronous and the streamed call share keys: a client that falls back from one to the other gets the same run.
   */
  async open(caller: Caller, body: ChatBody, key: string | undefined) {
    check(body)
    const { tenantId, keyId } = caller
    const plan = {
      conversationId: body.conversation_id ?? newId('conv'),
      publicRunId: newId('prun'),
      runId: newId('run'),
    }
    if (key === undefined) return createChat(deps, caller, body, plan)
    const attempt = await deps.idempotency.begin({ tenantId, scope: `${keyId} chat`, key, body, plan })
    return createChat(deps, caller, body, attempt.plan, attempt)
  },
})
export type Chats = ReturnType<typeof createChats>

/** `joined`: an earlier request of the same key began it. `refused`: certainly not begun. */
type State = 'new' | 'begun' | 'joined' | 'refused'

/** A chat that a request asks for, under the ids that it has, or will have once it is begun. */
function createChat(
  { database, dispatch, follower, log, onAccepted, onDoubt }: Dependencies,
  { tenantId, agent }: Caller,
  body: ChatBody,
  ids: Ids,
  attempt?: Attempt<Ids>,
) {
  const run: PublicRun = { tenantId, publishedId: agent.id, ...ids }
  const { publicRunId, conversationId } = run
  // Not the request's own signal: a client that leaves while the run is being begun does not undo that.
  const left = new AbortController()
  let state: State = 'new'

  const read = (afterSeq: number, known: Pick<Reading, 'events' | 'over'>) => {
    const reading = { ...known, afterSeq, exposeToolEvents: agent.exposeToolEvents }
    return (signal: AbortSignal): Frames => {
      const leave = (): void => left.abort(signal.reason)
      if (signal.aborted) leave()
      else signal.addEventListener('abort', leave, { once: true })
      return follower.frames(run, reading, left.signal)
    }
  }
  const keepIds = async (): Promise<void> => {
    onDoubt(tenantId)
    onAccepted(tenantId)
    const known = await keepInDoubt(database, run, body).catch((err: unknown) => {
      log.error({ err, conversationId }, 'chat.resolve_conv_failed')
      return true
    })
    if (known) return
    state = 'refused'
    throw conversationNotFound()
  }
  const failed = async (error: unknown): Promise<AppError> => {
    const refused = beganNothing(error)
    if (!refused || error.status >= 500) log.warn({ err: error, publicRunId }, 'chat.start_watcher_failed')
    if (!refused) {
      await keepIds()
      return noAnswer(run, 'unreachable', error)
    }
    if (state === 'new') state = 'refused'
    return refusal(error)
  }

  return {
    publicRunId,
    conversationId,
    /** Known once `start` has resolved. */
    get replayed(): boolean {
      return state === 'joined'
    },
    /**
     * Has the conductor begin the run, or joins the one that an earlier request of the key began. Resolves to what reads its
     * frames. Rejects with what the client is told; only an error that names the run may have begun it.
     */
    async start(afterSeq: number): Promise<(signal: AbortSignal) => Frames> {
      const earlier = attempt?.repeated ? await findRun(database, tenantId, publicRunId) : undefined
      if (earlier) state = 'joined'
      // One whose begin is in doubt is begun again, under its ids.
      if (earlier && earlier.status !== 'dispatching') {
        const { outcome } = earlier
        // It ended before the conductor had taken it: an answer, not a stream.
        if (outcome && outcome.status !== 'ok' && outcome.seq === 0) {
          throw noAnswer({ publicRunId, conversationId, replayed: true }, outcome)
        }
        // A stream is repeated whole.
        return read(afterSeq, afterSeq === endingOnly ? { over: outcome } : {})
      }
      try {
        const { events } = await dispatch.start(tenantId, taskOf(run, agent, body), afterSeq, left.signal)
        if (state === 'new') state = 'begun'
        onAccepted(tenantId)
        return read(afterSeq, { events })
      } catch (error) {
        throw await failed(error)
      }
    },
    /** The client is answered before `start` is: if the run was not begun yet, its ids are kept until that is known. */
    async leave(): Promise<void> {
      if (state === 'new') await keepIds()
    },
    /**
     * Called before the answer, so that whoever repeats the request finds its key free. Of a key that was used before, an
     * earlier request may still be beginning the run.
     */
    settle: async (): Promise<void> => (state === 'refused' && !attempt?.repeated ? attempt?.forget() : attempt?.end()),
  }
}

/** Reads a run for its end alone. */
export async function ending(frames: Frames): Promise<Told> {
  for (;;) {
    const { done, value } = await frames.next()
    if (done) return value
  }
}

// Whatever is there already was written by the conductor's start, with everything else.
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
 * Keeps a chat that the conductor may or may not have begun, as `dispatching`, so that its client can ask for it. Writes
 * nothing when the run is there. False: it continues a conversation that this agent does not have.
 */
export async function keepInDoubt(database: Database, run: PublicRun, body: ChatBody): Promise<boolean> {
  const { tenantId, conversationId, publishedId, publicRunId, runId } = run
  const { message, metadata, attachments } = body
  const continued = body.conversation_id !== undefined
  const shown = attachments?.map(({ name, mediaType }) => ({ name, mediaType }))
  const rest = [metadata?.end_user_id ?? null, message, shown?.length ? JSON.stringify(shown) : null, continued]
  const values = [tenantId, conversationId, publishedId, publicRunId, runId, ...rest]
  const rows = await database.unit(tenantId, { ...keep, values }, { order: conversationId, bytes: message.length })
  return rows.length > 0 || !continued
}

function taskOf(run: PublicRun, agent: Agent, body: ChatBody): DispatchTask {
  const { publicRunId, conversationId, publishedId } = run
  const { metadata, attachments } = body
  const continued = body.conversation_id !== undefined
  const endUserId = metadata?.end_user_id
  return {
    id: run.runId,
    profile: agent.profile,
    prompt: body.message,
    ...(attachments?.length ? { attachments } : {}),
    metadata: { ...metadata, conversation_id: conversationId, public_run_id: publicRunId },
    ...(agent.webhookUrl === null ? {} : { webhook: { url: agent.webhookUrl } }),
    chat: { publicRunId, conversationId, publishedId, continued, ...(endUserId === undefined ? {} : { endUserId }) },
  }
}

/** What the schema cannot say. PostgreSQL keeps no NUL. */
function check({ message, metadata, attachments, conversation_id: continued }: ChatBody): void {
  const noNul = (path: string, text = ''): void => {
    if (text.includes('\0')) throw invalidField(path, 'must not contain NUL characters')
  }
  noNul('body/message', message)
  noNul('body/metadata/end_user_id', metadata?.end_user_id)
  for (const [i, { data }] of (attachments ?? []).entries()) {
    if (!isBase64(data)) throw invalidField(`body/attachments/${i}/data`, 'must be base64')
  }
  if (continued !== undefined && !isId('conv', continued)) throw conversationNotFound()
}
