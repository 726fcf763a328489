import type { Database } from '#contracts/database'
import type { PromptFields } from '#contracts/prompt'
import type { Claim, PastRun } from '#contracts/run-store'
import type { TerminalRunStatus } from '#contracts/runs'
import { type ChunkRow, toChunk } from './rows.ts'
import { prepared } from './sql.ts'

const pageRuns = 16
/** No conversation is restored further back: a turn is at least two messages, and more than 400 are no model's prompt. */
const mostRuns = 208

// A conversation may have been in several sessions: its runs are then found by its messages.
const listRuns = prepared(
  'past-runs',
  `SELECT r.id, r.status, r.prompt, r.input, r.metadata, r.usage ->> 'model' AS model
   FROM runs r
   WHERE r.tenant_id = :tenant AND r.finished_at IS NOT NULL AND r.ordinal IS NOT NULL AND CASE WHEN :publicRun::text IS NULL
     THEN r.session_id = :session
     ELSE r.id = ANY (ARRAY(
       SELECT p.run_id FROM messages m JOIN public_runs p ON p.tenant_id = m.tenant_id AND p.id = m.public_run_id
       WHERE m.tenant_id = :tenant AND m.role = 'user' AND m.conversation_id = (
         SELECT conversation_id FROM public_runs WHERE tenant_id = :tenant AND id = :publicRun)
       ORDER BY m.position DESC LIMIT ${mostRuns}))
   END
   ORDER BY r.started_at DESC, r.id DESC LIMIT ${mostRuns}`,
)
const listChunks = {
  name: 'past-run-chunks',
  text: `SELECT run_id, first_seq, count, lines FROM run_events WHERE tenant_id = $1 AND run_id = ANY($2) ORDER BY run_id, first_seq`,
}

interface PastRow {
  readonly id: string
  readonly status: TerminalRunStatus
  readonly prompt: string
  readonly input: PromptFields | null
  readonly metadata: Record<string, unknown> | null
  readonly model: string | null
}

/** The finished runs of a conversation with their logs, newest first. Whoever has enough stops reading. */
export async function* readPastRuns(
  db: Database,
  { tenantId, sessionId, publicRunId }: Claim,
): AsyncGenerator<readonly PastRun[]> {
  const values = { tenant: tenantId, session: sessionId, publicRun: publicRunId }
  const [rows] = await db.batch<[PastRow[]]>(tenantId, [listRuns(values)])
  for (let from = 0; from < rows.length; from += pageRuns) {
    const page = rows.slice(from, from + pageRuns)
    const ids = page.map(({ id }) => id)
    const [chunks] = await db.batch<[(ChunkRow & { run_id: string })[]]>(tenantId, [
      { ...listChunks, values: [tenantId, ids] },
    ])
    const logs = Map.groupBy(chunks, ({ run_id }) => run_id)
    yield page.map(({ id, status, prompt, input, metadata, model }) => ({
      runId: id,
      status,
      prompt,
      input: input ?? undefined,
      metadata: metadata ?? undefined,
      model: model ?? undefined,
      log: (logs.get(id) ?? []).map(toChunk),
    }))
  }
}
