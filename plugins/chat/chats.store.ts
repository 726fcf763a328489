import type { Database } from '#contracts/database'
import type { Outcome, RunIds } from './outcome.ts'
import type { History } from './schema.ts'

// The conductor writes these tables: a conversation, its public run and the user's message begin with the run, and the public
// run and the assistant's message end with it, in the same commits. The gateway reads them, and keeps what it has in doubt.

/** What identifies a public run. */
export interface PublicRun extends RunIds {
  readonly tenantId: string
  readonly publishedId: string
  readonly runId: string
}

/** A public run as it is stored. */
export interface StoredRun extends PublicRun {
  readonly status: 'dispatching' | 'running' | 'ok' | 'error' | 'lost'
  /** Undefined while it is open. */
  readonly outcome: Outcome | undefined
}

const byId = {
  name: 'chat-run',
  text: `SELECT run.tenant_id AS "tenantId", run.id AS "publicRunId", run.published_id AS "publishedId",
           run.conversation_id AS "conversationId", run.run_id AS "runId", run.status, run.last_seq AS seq,
           coalesce(answer.content, '') AS message
         FROM public_runs run
         LEFT JOIN messages answer
           ON answer.tenant_id = run.tenant_id AND answer.public_run_id = run.id AND answer.role = 'assistant'
         WHERE run.tenant_id = $1 AND run.id = $2`,
}

type RunRow = PublicRun & Pick<Outcome, 'seq' | 'message'> & Pick<StoredRun, 'status'>

export async function findRun(database: Database, tenantId: string, id: string): Promise<StoredRun | undefined> {
  const [row] = await database.unit<RunRow>(tenantId, { ...byId, values: [tenantId, id] })
  if (!row) return undefined
  const { seq, message, status, ...run } = row
  const isOpen = status === 'dispatching' || status === 'running'
  return { ...run, status, outcome: isOpen ? undefined : { status, message, seq } }
}

/** What a conversation keeps of an attachment. */
export interface StoredAttachment {
  readonly name?: string
  readonly mediaType: string
}

export interface NewChat extends PublicRun {
  /** The conversation exists already. */
  readonly continued: boolean
  readonly message: string
  readonly endUserId?: string
  readonly attachments?: readonly StoredAttachment[]
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
export async function keepInDoubt(database: Database, chat: NewChat): Promise<boolean> {
  const { tenantId, conversationId, publishedId, publicRunId, runId, endUserId, message, attachments, continued } = chat
  const rest = [endUserId ?? null, message, attachments ? JSON.stringify(attachments) : null, continued]
  const values = [tenantId, conversationId, publishedId, publicRunId, runId, ...rest]
  const rows = await database.unit(tenantId, { ...keep, values }, { order: conversationId, bytes: message.length })
  return rows.length > 0 || !continued
}

interface MessageRow {
  role: string
  content: string
  at: string
  public_run_id: string
  attachments: StoredAttachment[] | null
}

const conversation = {
  name: 'chat-conversation',
  text: `SELECT 1 FROM conversations WHERE tenant_id = $1 AND id = $2 AND published_id = $3`,
}
const newest = {
  name: 'chat-messages',
  text: `SELECT role, content, at, public_run_id, attachments FROM messages
         WHERE tenant_id = $1 AND conversation_id = $2 AND (NOT failed OR $4)
         ORDER BY position DESC LIMIT $3`,
}

/** The newest messages of a conversation of this agent, oldest of them first. Undefined for any other conversation. */
export async function readHistory(
  database: Database,
  tenantId: string,
  publishedId: string,
  id: string,
  { limit, withErrors }: { limit: number; withErrors: boolean },
): Promise<History | undefined> {
  const [found, rows] = await database.batch<[object[], MessageRow[]]>(tenantId, [
    { ...conversation, values: [tenantId, id, publishedId] },
    { ...newest, values: [tenantId, id, limit, withErrors] },
  ])
  if (found.length === 0) return undefined
  const messages = rows.toReversed().map(({ role, content, at, public_run_id, attachments }) => ({
    role,
    content,
    at,
    // A client knows the run of its own message by the answer.
    ...(role === 'assistant' ? { public_run_id } : {}),
    ...(attachments ? { attachments } : {}),
  }))
  return { conversation_id: id, messages }
}
