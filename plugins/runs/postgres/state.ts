import type { Database } from '#contracts/database'
import type { PromptFields } from '#contracts/prompt'
import type { Claim, PastRun, RunStore } from '#contracts/run-store'
import type { TerminalRunStatus } from '#contracts/runs'
import { type ChunkRow, prepared, read, storableOrNull, toChunk } from './rows.ts'

// Bundle and count are stored together. Nothing is stored for a session that is gone or shut down, nor for one whose conversation has continued
// since the export: a conductor that was frozen in between must not overwrite a newer bundle with an old one.
const save = prepared(
  'session-save-state',
  `WITH kept AS (
     UPDATE sessions SET state_rev = state_rev + 1, runtime_session_id = coalesce(:handle, runtime_session_id)
     WHERE tenant_id = :tenant AND id = :session AND status <> 'shutdown' AND coalesce(runner_hash, :runner) = :runner
       AND claim_epoch = :epoch AND claim_run IS NULL
     RETURNING id
   ), was AS (
     SELECT octet_length(bytes) AS size FROM session_state WHERE tenant_id = :tenant AND session_id = :session
   )
   INSERT INTO session_state (tenant_id, session_id, content_type, bytes, runtime_session_id)
   SELECT :tenant, :session, :contentType, :bytes, :handle FROM kept
   ON CONFLICT (tenant_id, session_id) DO UPDATE
   SET content_type = excluded.content_type, bytes = excluded.bytes,
       runtime_session_id = excluded.runtime_session_id, saved_at = now()
   RETURNING octet_length(bytes) - coalesce((SELECT size FROM was), 0) AS grown`,
)
const load = prepared(
  'session-load-state',
  'SELECT content_type, bytes, runtime_session_id FROM session_state WHERE tenant_id = :tenant AND session_id = :session',
)

/** Runs per read, limited to about this many bytes of prompts and attachments. A single larger run is read alone. */
const pageRuns = 16
const pageBytes = 4 * 1024 * 1024
/** How many earlier runs are read to restore a conversation: a turn is at least two messages, and no model takes a prompt of more than 400. */
const mostRuns = 208

// Sizes are known without reading the contents, because attachments are stored as they came.
const past = (where: string): string => `
  SELECT id, octet_length(prompt) + coalesce(pg_column_size(input), 0) + coalesce(pg_column_size(metadata), 0) AS bytes, started_at
  FROM runs WHERE tenant_id = :tenant AND ${where} AND finished_at IS NOT NULL AND ordinal IS NOT NULL`
const newest = `ORDER BY started_at DESC, id DESC LIMIT ${mostRuns}`
const listRuns = prepared('past-runs', `${past('session_id = :session')} ${newest}`)
// A conversation may have spanned several sessions, so its runs are found by its messages. Each step is a look-up by key (OFFSET 0): joined, the
// runs of the tenant may be read by another index.
const listChatRuns = prepared(
  'past-chat-runs',
  `SELECT id, bytes FROM (
     SELECT DISTINCT run_id FROM (
       SELECT p.run_id FROM messages m CROSS JOIN LATERAL (
         SELECT run_id FROM public_runs WHERE tenant_id = :tenant AND id = m.public_run_id OFFSET 0
       ) p
       WHERE m.tenant_id = :tenant AND m.role = 'user' AND m.conversation_id = (
         SELECT conversation_id FROM public_runs WHERE tenant_id = :tenant AND id = :publicRun)
       ORDER BY m.position DESC LIMIT ${mostRuns}
     ) said
   ) chat CROSS JOIN LATERAL (${past('id = chat.run_id')} OFFSET 0) run
   ${newest}`,
)
const readRuns = prepared(
  'past-runs-read',
  `SELECT r.id, r.status, r.prompt, r.input, r.metadata, r.usage ->> 'model' AS model
   FROM unnest(:runs::text[]) WITH ORDINALITY AS asked (id, place) CROSS JOIN LATERAL (
     SELECT * FROM runs WHERE tenant_id = :tenant AND id = asked.id OFFSET 0
   ) r
   ORDER BY asked.place`,
)
const listChunks = prepared(
  'past-run-chunks',
  `SELECT run_id, first_seq, count, lines FROM run_events
   WHERE tenant_id = :tenant AND run_id = ANY(:runs) ORDER BY run_id, first_seq`,
)

interface PastRow {
  readonly id: string
  readonly status: TerminalRunStatus
  readonly prompt: string
  readonly input: PromptFields | null
  readonly metadata: Record<string, unknown> | null
  readonly model: string | null
}

/** The finished runs of a conversation with their logs, newest first. The reader stops when it has enough. */
async function* readPastRuns(
  db: Database,
  { tenantId, sessionId, publicRunId }: Claim,
): AsyncGenerator<readonly PastRun[]> {
  const values = { tenant: tenantId, session: sessionId, publicRun: publicRunId }
  const list = publicRunId === undefined ? listRuns : listChatRuns
  const listed = await read<{ id: string; bytes: number }>(db, tenantId, list(values))
  for (const runs of pagesOf(listed)) {
    const ofPage = { tenant: tenantId, runs }
    const [page, chunks] = await db.batch<[PastRow[], (ChunkRow & { run_id: string })[]]>(tenantId, [
      readRuns(ofPage),
      listChunks(ofPage),
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

function pagesOf(runs: readonly { id: string; bytes: number }[]): string[][] {
  const pages: string[][] = []
  let room = 0
  for (const { id, bytes } of runs) {
    const page = pages.at(-1)
    if (page && page.length < pageRuns && bytes <= room) page.push(id)
    else {
      pages.push([id])
      room = pageBytes
    }
    room -= bytes
  }
  return pages
}

/** The store's operations for restoring a conversation. */
export const createState = (db: Database) =>
  ({
    pastRuns: (claim) => readPastRuns(db, claim),
    async saveState(tenantId, sessionId, bundle, { runner, epoch }) {
      const bytes = Buffer.from(bundle.bytes.buffer, bundle.bytes.byteOffset, bundle.bytes.byteLength)
      const handle = storableOrNull(bundle.runtimeSessionId)
      const values = {
        tenant: tenantId,
        session: sessionId,
        contentType: bundle.contentType,
        bytes,
        handle,
        runner,
        epoch,
      }
      const options = { order: sessionId, bytes: bytes.length }
      const [saved] = await db.unit<{ grown: number }>(tenantId, save(values), options)
      return saved?.grown
    },
    async loadState(tenantId, sessionId) {
      type Row = { content_type: string; bytes: Buffer; runtime_session_id: string | null }
      const [row] = await read<Row>(db, tenantId, load({ tenant: tenantId, session: sessionId }))
      if (!row) return undefined
      return {
        bytes: row.bytes,
        contentType: row.content_type,
        ...(row.runtime_session_id === null ? {} : { runtimeSessionId: row.runtime_session_id }),
      }
    },
  }) satisfies Partial<RunStore>
