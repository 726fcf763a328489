import { isAppError } from '#kernel'
import type { Idempotency } from '#contracts/idempotency'
import type { Caller } from './authenticate.ts'
import type { Outcome, RunIds } from './outcome.ts'
import type { ChatBody } from './schema.ts'
import { type ChatIds, type ChatService, newChatIds } from './service.ts'
import type { Watcher } from './watchers.ts'

/** A chat that a request answers with: watched here, or followed from where it is. */
export interface Chat extends RunIds {
  /** Resolves when the conductor took the run: to undefined, or to the outcome if it ended before that. */
  readonly dispatched: Promise<Outcome | undefined>
  /** Resolves to undefined when this process stops first. `signal` ends the looking. */
  ended(signal: AbortSignal): Promise<Outcome | undefined>
  /** Frames from the first event to the terminal one. */
  follow(signal: AbortSignal): AsyncGenerator<string>
}

export const watchedChat = ({ publicRunId, conversationId, dispatched, ended, log }: Watcher): Chat => ({
  publicRunId,
  conversationId,
  dispatched,
  ended: () => ended,
  follow: (signal) => log.follow(0, signal),
})

export interface Begun {
  readonly chat: Chat
  /** An earlier request of the same key began it. */
  readonly replayed: boolean
  /** Called before the answer, so that whoever repeats the request finds its key free. */
  settle(outcome?: Outcome): Promise<void>
}

interface Dependencies {
  readonly idempotency: Idempotency
  readonly chats: Pick<ChatService, 'start'>
  /** A chat of this agent that exists, here or elsewhere. */
  join(caller: Caller, publicRunId: string): Promise<Chat | undefined>
}

export type BeginOnce = (caller: Caller, body: ChatBody, key: string | undefined) => Promise<Begun>

const nothing = async (): Promise<void> => {}

/**
 * Begins a chat, and with an `Idempotency-Key` only once. What was answered is never stored: the public run says it, so a
 * repeat joins the run by its id, whichever process began it and however that ended. The synchronous and the streamed
 * call share keys: a client that falls back from one to the other gets the same run.
 */
export function createBeginOnce({ idempotency, chats, join }: Dependencies): BeginOnce {
  const start = async (caller: Caller, body: ChatBody, ids?: ChatIds): Promise<Chat> =>
    watchedChat(await chats.start(caller, body, ids))
  return async (caller, body, key) => {
    if (key === undefined) return { chat: await start(caller, body), replayed: false, settle: nothing }
    const { tenantId, keyId } = caller
    const plan = newChatIds(body)
    const attempt = await idempotency.begin({ tenantId, scope: `${keyId} chat`, key, body, plan })
    const settle = async (outcome?: Outcome): Promise<void> =>
      // A refused run was never taken by the conductor.
      outcome?.refusal ? attempt.forget() : attempt.end()
    const joined = () => (attempt.repeated ? join(caller, attempt.plan.publicRunId) : undefined)
    try {
      const earlier = await joined()
      if (earlier) return { chat: earlier, replayed: true, settle }
      return { chat: await start(caller, body, attempt.plan), replayed: false, settle }
    } catch (error) {
      // A request that was taken for dead may have written the run since it was looked for.
      const late = await joined()?.catch(() => undefined)
      if (late) return { chat: late, replayed: true, settle }
      // A refusal began nothing. After any other failure the run may exist: the next request of the key joins it.
      const refused = isAppError(error) && error.code !== 'unavailable'
      await (refused ? attempt.forget() : attempt.end())
      throw error
    }
  }
}
