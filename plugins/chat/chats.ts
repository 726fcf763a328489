import type { FastifyBaseLogger } from 'fastify'
import type { AppError } from '#kernel'
import type { Database } from '#contracts/database'
import type { Attempt, Idempotency } from '#contracts/idempotency'
import { isId, newId } from '#contracts/ids'
import { isBase64 } from '#contracts/prompt'
import { type DispatchTask, endingOnly, type RunDispatch } from '#contracts/runs'
import type { Agent } from './agents.store.ts'
import type { Caller } from './authenticate.ts'
import { findRun, keepInDoubt, type NewChat } from './chats.store.ts'
import { beganNothing, conversationNotFound, invalidAttachment, invalidText, noAnswer, refusal } from './errors.ts'
import type { Follower, Frames, Reading, Told } from './follow.ts'
import type { RunIds } from './outcome.ts'
import type { ChatBody } from './schema.ts'

/** A chat that a request asks for, under the ids that it has, or will have once it is begun. */
export interface Chat extends RunIds {
  /** An earlier request of the same key began it. Known once `start` has resolved. */
  readonly replayed: boolean
  /**
   * Has the conductor begin the run, or joins the one that an earlier request of the key began. Resolves to what reads its
   * frames. Rejects with what the client is told; only an error that names the run may have begun it.
   */
  start(afterSeq: number): Promise<(signal: AbortSignal) => Frames>
  /** The client is answered before `start` is: if the run was not begun yet, its ids are kept until that is known. */
  leave(): Promise<void>
  /** Called before the answer, so that whoever repeats the request finds its key free. */
  settle(): Promise<void>
}

type Ids = Pick<NewChat, 'conversationId' | 'publicRunId' | 'runId'>

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

export interface Chats {
  /**
   * Checks a request and gives its chat its ids; with an `Idempotency-Key` those that the first request of the key chose.
   * What was answered is never stored: the public run says it, so a repeat joins the run by its id, whichever process began
   * it and however that ended. The synchronous and the streamed call share keys: a client that falls back from one to the
   * other gets the same run.
   */
  open(caller: Caller, body: ChatBody, key: string | undefined): Promise<Chat>
}

export const createChats = (deps: Dependencies): Chats => ({
  async open(caller, body, key) {
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

/** `refused`: certainly not begun. */
type State = 'new' | 'begun' | 'joined' | 'refused'

function createChat(
  { database, dispatch, follower, log, onAccepted, onDoubt }: Dependencies,
  { tenantId, agent }: Caller,
  body: ChatBody,
  ids: Ids,
  attempt?: Attempt<Ids>,
): Chat {
  const chat = newChat(tenantId, agent, body, ids)
  const { publicRunId, conversationId } = chat
  // Not the request's own signal: a client that leaves while the run is being begun does not undo that.
  const left = new AbortController()
  let state: State = 'new'

  const read = (afterSeq: number, known: Pick<Reading, 'events' | 'over'>) => {
    const reading = { ...known, afterSeq, exposeToolEvents: agent.exposeToolEvents }
    return (signal: AbortSignal): Frames => {
      const leave = (): void => left.abort(signal.reason)
      if (signal.aborted) leave()
      else signal.addEventListener('abort', leave, { once: true })
      return follower.frames(chat, reading, left.signal)
    }
  }
  const keepIds = async (): Promise<void> => {
    onDoubt(tenantId)
    onAccepted(tenantId)
    const known = await keepInDoubt(database, chat).catch((err: unknown) => {
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
      return noAnswer(chat, 'unreachable', error)
    }
    if (state === 'new') state = 'refused'
    return refusal(error)
  }

  return {
    publicRunId,
    conversationId,
    get replayed() {
      return state === 'joined'
    },
    async start(afterSeq) {
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
        const { events } = await dispatch.start(tenantId, taskOf(chat, agent, body), afterSeq, left.signal)
        if (state === 'new') state = 'begun'
        onAccepted(tenantId)
        return read(afterSeq, { events })
      } catch (error) {
        throw await failed(error)
      }
    },
    async leave() {
      if (state === 'new') await keepIds()
    },
    // Of a key that was used before, an earlier request may still be beginning the run.
    settle: async () => (state === 'refused' && !attempt?.repeated ? attempt?.forget() : attempt?.end()),
  }
}

/** Reads a run for its end alone. */
export async function ending(frames: Frames): Promise<Told> {
  for (;;) {
    const { done, value } = await frames.next()
    if (done) return value
  }
}

function newChat(
  tenantId: string,
  { id: publishedId }: Agent,
  { message, conversation_id, metadata, attachments }: ChatBody,
  ids: Ids,
): NewChat {
  const endUserId = metadata?.end_user_id
  return {
    tenantId,
    publishedId,
    ...ids,
    continued: conversation_id !== undefined,
    message,
    ...(endUserId === undefined ? {} : { endUserId }),
    ...(attachments?.length
      ? {
          attachments: attachments.map(({ name, mediaType }) => ({
            ...(name === undefined ? {} : { name }),
            mediaType,
          })),
        }
      : {}),
  }
}

function taskOf(chat: NewChat, agent: Agent, { metadata, attachments }: ChatBody): DispatchTask {
  const { publicRunId, conversationId, publishedId, continued, endUserId } = chat
  return {
    id: chat.runId,
    profile: agent.profile,
    prompt: chat.message,
    ...(attachments?.length ? { attachments } : {}),
    metadata: { ...metadata, conversation_id: conversationId, public_run_id: publicRunId },
    ...(agent.webhookUrl === null ? {} : { webhook: { url: agent.webhookUrl } }),
    chat: { publicRunId, conversationId, publishedId, continued, ...(endUserId === undefined ? {} : { endUserId }) },
  }
}

/** What the schema cannot say. PostgreSQL keeps no NUL. */
function check({ message, metadata, attachments, conversation_id: continued }: ChatBody): void {
  if (message.includes('\0')) throw invalidText('body/message')
  if (metadata?.end_user_id?.includes('\0')) throw invalidText('body/metadata/end_user_id')
  for (const [i, { data }] of (attachments ?? []).entries()) if (!isBase64(data)) throw invalidAttachment(i)
  if (continued !== undefined && !isId('conv', continued)) throw conversationNotFound()
}
