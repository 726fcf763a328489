import type { FastifyBaseLogger } from 'fastify'
import { type AppError, isAppError } from '#kernel'
import { type Database, sqlState } from '#contracts/database'
import { isId, newId } from '#contracts/ids'
import { type Attachment, isBase64 } from '#contracts/prompt'
import type { RunDispatch, SubTask } from '#contracts/runs'
import type { Caller } from './authenticate.ts'
import { conversationBusy, conversationNotFound, invalidAttachment, invalidText, notPublished } from './errors.ts'
import { errorOutcome, type Outcome } from './outcome.ts'
import {
  beginConversation,
  continueConversation,
  discardRun,
  findRun,
  finishRun,
  type NewChat,
  type StoredAttachment,
} from './runs.store.ts'
import type { ChatBody } from './schema.ts'
import type { Source, Watcher, Watchers } from './watchers.ts'

/** What the conductor says of a session that was shut down, or that belongs to an earlier profile of the name. */
const sessionGone = ['not_found', 'session_profile_mismatch']

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
  readonly log: FastifyBaseLogger
  readonly watchers: Watchers
  /** The instance that new runs are claimed for. */
  owner(): Promise<string>
  /** The run was written: from here on the request counts. */
  onAccepted(tenantId: string): void
  /** A write of this process may have happened without our knowing: its open runs have to be looked over. */
  onDoubt(tenantId: string): void
}

/** The ids of a chat, chosen before it begins. */
export type ChatIds = { readonly conversationId: string; readonly publicRunId: string; readonly runId: string }

export const newChatIds = ({ conversation_id: continued }: ChatBody): ChatIds => ({
  conversationId: continued ?? newId('conv'),
  publicRunId: newId('prun'),
  runId: newId('run'),
})

export interface ChatService {
  /** Stores the message and its run, and starts watching; the conversation is new when the body names none. */
  start(caller: Caller, body: ChatBody, ids?: ChatIds): Promise<Watcher>
  /** Runs that are being written and have no watcher yet: nobody's orphans. */
  readonly beginning: ReadonlySet<string>
}

export function createChatService({
  database,
  dispatch,
  log,
  watchers,
  owner,
  onAccepted,
  onDoubt,
}: Dependencies): ChatService {
  const beginning = new Set<string>()

  /** Resolves to the session that the conversation is pinned to, if it has one. */
  const begin = async (chat: NewChat, isNew: boolean): Promise<string | undefined> => {
    try {
      if (!isNew) return await continueConversation(database, chat)
      await beginConversation(database, chat)
      return undefined
    } catch (err) {
      if (isAppError(err) && err.status < 500) throw err
      log.error({ err, conversationId: chat.conversationId }, 'chat.resolve_conv_failed')
      // Unless PostgreSQL itself refused, the commit may have come through and only its answer be lost.
      if (sqlState(err) === undefined) onDoubt(chat.tenantId)
      throw err
    }
  }

  const submit = async (chat: NewChat, task: SubTask & { id: string }, signal: AbortSignal): Promise<Source> => {
    try {
      return await dispatch.start(chat.tenantId, task, signal)
    } catch (error) {
      if (task.sessionId === undefined || !isAppError(error) || !sessionGone.includes(error.code)) throw error
      // The conversation outlives its session: it goes on in a fresh one.
      const { sessionId: _, ...fresh } = task
      return dispatch.start(chat.tenantId, fresh, signal)
    }
  }

  return {
    beginning,
    async start({ tenantId, agent }, body, ids = newChatIds(body)) {
      const { message, conversation_id: continued, metadata, attachments } = body
      const endUserId = metadata?.end_user_id
      if (message.includes('\0')) throw invalidText('body/message')
      if (endUserId?.includes('\0')) throw invalidText('body/metadata/end_user_id')
      checkAttachments(attachments)
      if (continued !== undefined && !isId('conv', continued)) throw conversationNotFound()
      const chat: NewChat = {
        tenantId,
        publishedId: agent.id,
        ...ids,
        owner: await owner(),
        message,
        ...(endUserId === undefined ? {} : { endUserId }),
        ...(attachments?.length ? { attachments: attachments.map(storedOf) } : {}),
      }
      beginning.add(chat.publicRunId)
      try {
        const sessionId = await begin(chat, continued === undefined)
        onAccepted(tenantId)
        const task = {
          id: chat.runId,
          profile: agent.profile,
          prompt: message,
          ...(attachments?.length ? { attachments } : {}),
          metadata: { ...metadata, conversation_id: chat.conversationId, public_run_id: chat.publicRunId },
          ...(sessionId === undefined ? {} : { sessionId }),
          ...(agent.webhookUrl === undefined ? {} : { webhook: { url: agent.webhookUrl } }),
        }
        return watchers.open({ ...chat, exposeToolEvents: agent.exposeToolEvents }, (signal) =>
          submit(chat, task, signal),
        )
      } finally {
        beginning.delete(chat.publicRunId)
      }
    },
  }
}

const storedOf = ({ name, mediaType }: Attachment): StoredAttachment => ({
  ...(name === undefined ? {} : { name }),
  mediaType: mediaType,
})

/** Before anything is stored: the conductor would refuse the run, and the conversation have a message without an answer. */
function checkAttachments(attachments: readonly Attachment[] = []): void {
  for (const [i, { data }] of attachments.entries()) if (!isBase64(data)) throw invalidAttachment(i)
}

/** What it means for a public run that the conductor refused it or cannot be followed. */
export function outcomeOfFailure(error: unknown): Outcome {
  const code = isAppError(error) ? error.code : 'internal'
  const refused = (outcome: Outcome, refusal: AppError): Outcome => ({ ...outcome, refusal })
  if (code === 'session_busy') return refused(errorOutcome(code), conversationBusy())
  if (code.startsWith('unknown_profile')) return refused(errorOutcome(code), notPublished())
  return errorOutcome(code === 'upstream' ? 'unreachable' : code)
}

/** Stores how a run ended, and resolves to what is on record: another gateway may have been first. */
export async function commitOutcome(database: Database, watcher: Watcher, outcome: Outcome): Promise<Outcome> {
  if (outcome.refusal?.code === 'conversation_busy') {
    await discardRun(database, watcher, watcher.owner)
    return outcome
  }
  if (await finishRun(database, watcher, watcher.owner, outcome)) return outcome
  const stored = await findRun(database, watcher.tenantId, watcher.publicRunId)
  // Nothing is announced that is not stored: the new owner follows the same run and will write the same end.
  if (stored?.outcome === undefined && stored) throw new Error('the run has another owner, which has not ended it yet')
  return stored?.outcome && stored.outcome.status !== outcome.status ? stored.outcome : outcome
}
