import { type Database, violatedConstraint } from '#contracts/database'
import { conversationBusy, conversationNotFound } from './errors.ts'
import type { Outcome, RunIds } from './outcome.ts'

export type PublicRunStatus = 'dispatching' | 'running' | 'ok' | 'error' | 'lost'

/** What identifies a public run to the gateway that watches it. */
export interface PublicRun extends RunIds {
  readonly tenantId: string
  readonly publishedId: string
  readonly runId: string
}

/** What a conversation keeps of an attachment. */
export interface StoredAttachment {
  readonly name?: string
  readonly mediaType: string
}

export interface NewChat extends PublicRun {
  readonly owner: string
  readonly message: string
  readonly endUserId?: string
  readonly attachments?: readonly StoredAttachment[]
}

// `status IN ('dispatching', 'running')` by constraint. Written so, the planner cannot take the partial index of open runs,
// which on a table without statistics it prefers to the primary key, and then reads every open run of the tenant.
const open = 'finished_at IS NULL'

// $1 tenant, $2 conversation, $3 published agent, $4 public run, $5 run, $6 owner, $7 message, $8 end user, $9 what came with it
const insertRun = `INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, owner_instance, end_user_id)`
const insertMessage = `INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, attachments)`
const begin = {
  name: 'chat-begin',
  text: `WITH conversation AS (
           INSERT INTO conversations (tenant_id, id, published_id, end_user_id) VALUES ($1, $2, $3, $8)),
         run AS (${insertRun} VALUES ($1, $4, $3, $2, $5, $6, $8))
         ${insertMessage} VALUES ($1, $2, $4, 'user', $7, $9::json)`,
}
const proceed = {
  name: 'chat-continue',
  text: `WITH conversation AS (
           SELECT session_id FROM conversations WHERE tenant_id = $1 AND id = $2 AND published_id = $3),
         run AS (${insertRun} SELECT $1, $4, $3, $2, $5, $6, $8 FROM conversation),
         message AS (${insertMessage} SELECT $1, $2, $4, 'user', $7, $9::json FROM conversation)
         SELECT session_id FROM conversation`,
}

/** Begins a conversation with its first run and message. */
export const beginConversation = async (database: Database, chat: NewChat): Promise<void> =>
  void (await database.unit(chat.tenantId, { ...begin, values: values(chat) }, { order: chat.conversationId }))

/** Adds a run and its message to a conversation of this agent, if none is under way there. Resolves to the session it is pinned to. */
export async function continueConversation(database: Database, chat: NewChat): Promise<string | undefined> {
  const statement = { ...proceed, values: values(chat) }
  const [row] = await database
    .unit<{ session_id: string | null }>(chat.tenantId, statement, { order: chat.conversationId })
    .catch((error: unknown) => {
      throw violatedConstraint(error) === 'public_runs_open' ? conversationBusy({ cause: error }) : error
    })
  if (!row) throw conversationNotFound()
  return row.session_id ?? undefined
}

const values = (chat: NewChat): unknown[] => [
  chat.tenantId,
  chat.conversationId,
  chat.publishedId,
  chat.publicRunId,
  chat.runId,
  chat.owner,
  chat.message,
  chat.endUserId ?? null,
  chat.attachments ? JSON.stringify(chat.attachments) : null,
]

const finish = {
  name: 'chat-finish',
  text: `WITH run AS (
           UPDATE public_runs SET status = $4, error_code = $5, error_message = $6, last_seq = $7, finished_at = now()
           WHERE tenant_id = $1 AND id = $2 AND owner_instance = $3 AND ${open}
           RETURNING conversation_id),
         message AS (
           INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, failed)
           SELECT $1, conversation_id, $2, 'assistant', $8, $9 FROM run),
         conversation AS (
           UPDATE conversations SET session_id = coalesce($10, session_id), updated_at = now()
           WHERE tenant_id = $1 AND id = (SELECT conversation_id FROM run))
         SELECT 1 FROM run`,
}

/** Writes the end of a run, once: false when it has ended already or another gateway owns it now. */
export async function finishRun(
  database: Database,
  run: PublicRun,
  owner: string,
  { status, message, code, seq, sessionId }: Outcome,
): Promise<boolean> {
  const failed = status !== 'ok'
  // PostgreSQL text holds everything that a model may say but NUL.
  const content = message.replaceAll('\0', '\uFFFD')
  const row = [status, code ?? null, failed ? content : null, seq, content, failed, sessionId ?? null]
  const statement = { ...finish, values: [run.tenantId, run.publicRunId, owner, ...row] }
  const rows = await database.unit(run.tenantId, statement, { order: run.conversationId, bytes: content.length })
  return rows.length > 0
}

const discard = {
  name: 'chat-discard',
  text: `WITH run AS (
           DELETE FROM public_runs WHERE tenant_id = $1 AND id = $2 AND owner_instance = $3 AND status = 'dispatching'
           RETURNING id)
         DELETE FROM messages WHERE tenant_id = $1 AND public_run_id = (SELECT id FROM run)`,
}

/** Undoes a run that the conductor refused because the session is busy: as if it had never been asked for. */
export const discardRun = async (database: Database, run: PublicRun, owner: string): Promise<void> =>
  void (await database.batch(run.tenantId, [{ ...discard, values: [run.tenantId, run.publicRunId, owner] }]))

const running = {
  name: 'chat-running',
  text: `WITH started AS (SELECT * FROM unnest($3::text[], $4::text[]) AS started (id, session_id)),
         run AS (
           UPDATE public_runs SET status = 'running' FROM started
           WHERE public_runs.tenant_id = $1 AND public_runs.id = started.id AND owner_instance = $2
             AND status = 'dispatching'
           RETURNING conversation_id, started.session_id)
         UPDATE conversations SET session_id = run.session_id FROM run
         WHERE conversations.tenant_id = $1 AND conversations.id = run.conversation_id`,
}

/** Notes that runs are under way in these sessions, for everybody who asks while they are. */
export const markRunning = (
  database: Database,
  tenantId: string,
  owner: string,
  runs: readonly { readonly publicRunId: string; readonly sessionId: string }[],
): Promise<unknown> =>
  database.batch(tenantId, [
    { ...running, values: [tenantId, owner, runs.map((r) => r.publicRunId), runs.map((r) => r.sessionId)] },
  ])

/** A public run as it is stored. */
export interface StoredRun extends PublicRun {
  readonly status: PublicRunStatus
  /** Undefined while it is open. */
  readonly outcome: Outcome | undefined
}

interface RunRow {
  id: string
  published_id: string
  conversation_id: string
  run_id: string
  status: PublicRunStatus
  error_code: string | null
  last_seq: number
  content: string | null
}

const byId = {
  name: 'chat-run',
  text: `SELECT run.id, run.published_id, run.conversation_id, run.run_id, run.status, run.error_code, run.last_seq,
           answer.content
         FROM public_runs run
         LEFT JOIN messages answer
           ON answer.tenant_id = run.tenant_id AND answer.public_run_id = run.id AND answer.role = 'assistant'
         WHERE run.tenant_id = $1 AND run.id = $2`,
}

export async function findRun(database: Database, tenantId: string, id: string): Promise<StoredRun | undefined> {
  const [[row]] = await database.batch<[RunRow[]]>(tenantId, [{ ...byId, values: [tenantId, id] }])
  return row && storedRun(tenantId, row)
}

function storedRun(tenantId: string, row: RunRow): StoredRun {
  const { status, error_code: code } = row
  const isOpen = status === 'dispatching' || status === 'running'
  return {
    tenantId,
    publicRunId: row.id,
    publishedId: row.published_id,
    conversationId: row.conversation_id,
    runId: row.run_id,
    status,
    outcome: isOpen
      ? undefined
      : { status, message: row.content ?? '', seq: row.last_seq, ...(code === null ? {} : { code }) },
  }
}
