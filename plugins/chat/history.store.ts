import type { Database } from '#contracts/database'
import type { StoredAttachment } from './runs.store.ts'
import type { History } from './schema.ts'

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
