import type { TenantTx } from '#contracts/database'
import type { Place } from './batches.ts'

interface Seen {
  readonly conversation_id: string
  readonly idle: boolean
  readonly place: string[]
}

/** Among the next `limit` public runs, finds conversations whose last message is older than `before`. `next`: where the walk goes on. */
export async function idleConversations(
  tx: TenantTx,
  before: Date,
  limit: number,
  place: Place,
): Promise<{ ids: string[]; next: Place }> {
  const rows = await tx.query<Seen>({
    name: 'retention-idle',
    text: `SELECT p.conversation_id, ARRAY[p.created_at::text, p.id] AS place, NOT EXISTS (
             SELECT FROM messages m WHERE m.tenant_id = $1 AND m.conversation_id = p.conversation_id AND m.at >= $2::timestamptz
           ) AS idle
           FROM public_runs p WHERE p.tenant_id = $1 AND p.created_at < $2::timestamptz
             AND ($4::timestamptz IS NULL OR (p.created_at, p.id) > ($4, $5::text))
           ORDER BY p.created_at, p.id LIMIT $3`,
    values: [tx.tenantId, before, limit, place?.[0] ?? null, place?.[1] ?? null],
  })
  const ids = [...new Set(rows.filter(({ idle }) => idle).map((row) => row.conversation_id))]
  return { ids, next: rows.length < limit ? undefined : rows.at(-1)!.place }
}

/**
 * Ends conversations in which nothing is under way: deletes their rows and the saved state of their sessions, and shuts the sessions down.
 * Resolves to the conversations that have ended, including earlier ones; busy ones are left unchanged. With `endUser`, their runners have still to be
 * told, so the sessions are noted: retention may have deleted all runs by which they would be found.
 *
 * The rows are locked first and checked by a later statement, which sees what was committed meanwhile: a chat that goes on has to claim
 * the session, and then finds it shut down.
 */
export async function closeIdle(
  tx: TenantTx,
  ids: readonly string[],
  { before, endUser }: { readonly before?: Date; readonly endUser?: string } = {},
): Promise<string[]> {
  if (ids.length === 0) return []
  // Reads row by row through the primary key. Without statistics the planner would read the whole table for a list of ids.
  const locked = await tx.query<{ id: string; session_id: string | null }>({
    text: `SELECT c.id, c.session_id FROM unnest($2::text[]) AS wanted (id) CROSS JOIN LATERAL (
             SELECT id, session_id FROM conversations WHERE tenant_id = $1 AND id = wanted.id FOR UPDATE SKIP LOCKED) c`,
    values: [tx.tenantId, ids],
  })
  const free = await lockFree(
    tx,
    locked.flatMap(({ session_id }) => session_id ?? []),
  )
  const rows = await tx.query<{ id: string }>({
    text: `WITH idle AS MATERIALIZED (
             SELECT c.id FROM unnest($2::text[]) AS wanted (id) CROSS JOIN LATERAL (
               SELECT id, session_id FROM conversations WHERE tenant_id = $1 AND id = wanted.id OFFSET 0) c
             WHERE (c.session_id IS NULL OR c.session_id = ANY($3) OR (
                 SELECT s.id FROM sessions s WHERE s.tenant_id = $1 AND s.id = c.session_id) IS NULL)
               AND (SELECT q.run_id FROM run_queue q WHERE q.tenant_id = $1 AND q.session_id = c.session_id LIMIT 1) IS NULL
               AND (SELECT p.id FROM public_runs p WHERE p.tenant_id = $1 AND p.conversation_id = c.id
                      AND p.status IN ('dispatching', 'running') LIMIT 1) IS NULL
               AND ($5::timestamptz IS NULL OR (
                 SELECT m.position FROM messages m WHERE m.tenant_id = $1 AND m.conversation_id = c.id AND m.at >= $5 LIMIT 1) IS NULL)
           ), gone AS (
             DELETE FROM conversations WHERE tenant_id = $1 AND id = ANY (ARRAY(SELECT id FROM idle))
             RETURNING id, session_id
           ), state AS (
             DELETE FROM session_state WHERE tenant_id = $1 AND session_id = ANY (ARRAY(SELECT session_id FROM gone))
           ), shut AS (
             UPDATE sessions SET status = 'shutdown', last_prompt = NULL
             WHERE tenant_id = $1 AND id = ANY (ARRAY(SELECT session_id FROM gone)) AND claim_run IS NULL
           ), noted AS (
             INSERT INTO end_user_sessions (tenant_id, person, session_id, runner_hash)
             SELECT $1, sha256(convert_to($6, 'UTF8')), session_id, (
               SELECT s.runner_hash FROM sessions s WHERE s.tenant_id = $1 AND s.id = session_id)
             FROM gone WHERE $6::text IS NOT NULL AND session_id IS NOT NULL ON CONFLICT DO NOTHING
           )
           SELECT id FROM gone
           UNION
           SELECT wanted.id FROM unnest($4::text[]) AS wanted (id)
           WHERE (SELECT c.id FROM conversations c WHERE c.tenant_id = $1 AND c.id = wanted.id) IS NULL
             AND (SELECT p.id FROM public_runs p WHERE p.tenant_id = $1 AND p.conversation_id = wanted.id
                    AND p.status IN ('dispatching', 'running') LIMIT 1) IS NULL`,
    values: [tx.tenantId, locked.map(({ id }) => id), free, ids, before ?? null, endUser ?? null],
  })
  return rows.map(({ id }) => id)
}

/** Deleted rows by the names that users know. */
interface Cleared {
  /** How many public runs were taken on. Fewer than the limit: nothing is left. */
  readonly publicRuns: number
  readonly messages: number
  readonly runs: number
  /** A run of the conversations is still executed, so nothing was deleted. */
  readonly busy: boolean
}

interface Owned {
  /** The run among the given ones that this one belongs to. */
  readonly root: string
  readonly id: string
  readonly session_id: string
  /** The run has ended, no workflow has still to read its result, and nothing is executed or waits in its session. */
  readonly over: boolean
}

const nothing = { publicRuns: 0, messages: 0, runs: 0, busy: false }

/** The next public runs of ended conversations, those of `endUser` last. */
const nextChats = (
  tx: TenantTx,
  ids: readonly string[],
  limit: number,
  endUser: string | null,
): Promise<{ id: string; run_id: string | null }[]> =>
  tx.query({
    text: `SELECT said.id, p.run_id FROM (
             SELECT m.public_run_id AS id, m.position FROM unnest($2::text[]) AS wanted (id) CROSS JOIN LATERAL (
               SELECT public_run_id, position FROM messages
               WHERE tenant_id = $1 AND conversation_id = wanted.id AND role = 'user' OFFSET 0) m
           ) said LEFT JOIN LATERAL (
             SELECT run_id, end_user_id FROM public_runs WHERE tenant_id = $1 AND id = said.id OFFSET 0) p ON true
           ORDER BY p.end_user_id IS NOT DISTINCT FROM $4::text, said.position LIMIT $3`,
    values: [tx.tenantId, ids, limit, endUser],
  })

/** The runs that `clearConversations` deletes next. */
export const nextRuns = async (tx: TenantTx, id: string, limit: number, endUser: string): Promise<string[]> =>
  (await nextChats(tx, [id], limit, endUser)).flatMap(({ run_id }) => run_id ?? [])

/**
 * Deletes at most `limit` public runs of ended conversations, with their messages. With `runs`, also deletes their runs, the runs that these
 * delegated, and all logs and webhook messages, and shuts their sessions down. The public runs of `endUser` go last, because a conversation is found
 * through them after a crash.
 */
export async function clearConversations(
  tx: TenantTx,
  ids: readonly string[],
  limit: number,
  runs: 'keep' | { readonly endUser: string },
): Promise<Cleared> {
  if (ids.length === 0) return nothing
  const found = await nextChats(tx, ids, limit, runs === 'keep' ? null : runs.endUser)
  const publicRuns = found.map(({ id }) => id)
  const owned =
    runs === 'keep'
      ? []
      : await ownedRuns(
          tx,
          found.flatMap(({ run_id }) => run_id ?? []),
        )
  if (owned.some(({ over }) => !over)) return { ...nothing, busy: true }
  if (runs !== 'keep') await deleteRuns(tx, owned, runs.endUser)
  const said = await tx.query({
    text: `WITH gone AS (DELETE FROM public_runs WHERE tenant_id = $1 AND id = ANY($2))
           DELETE FROM messages WHERE tenant_id = $1 AND public_run_id = ANY($2) RETURNING 1`,
    values: [tx.tenantId, publicRuns],
  })
  return { publicRuns: found.length, messages: said.length, runs: owned.length, busy: false }
}

/**
 * Deletes runs that belong to no conversation, each with the runs that it delegated. Those of which something is under way stay. Resolves to how many
 * are gone.
 */
export async function clearRuns(tx: TenantTx, ids: readonly string[], endUser: string): Promise<number> {
  const owned = await ownedRuns(tx, ids)
  const busy = new Set(owned.filter(({ over }) => !over).map(({ root }) => root))
  const over = owned.filter(({ root }) => !busy.has(root))
  await deleteRuns(tx, over, endUser)
  return new Set(over.map(({ id }) => id)).size
}

/** SQL: the given runs and all runs that they delegated, at any depth. */
const tree = `tree AS (
  SELECT id AS root, id, session_id, finished_at FROM runs WHERE tenant_id = $1 AND id = ANY($2)
  UNION
  SELECT tree.root, r.id, r.session_id, r.finished_at FROM tree
  CROSS JOIN LATERAL (SELECT run_id FROM run_children WHERE tenant_id = $1 AND parent_id = tree.id OFFSET 0) c
  CROSS JOIN LATERAL (
    SELECT id, session_id, finished_at FROM runs WHERE tenant_id = $1 AND id = c.run_id OFFSET 0) r)`

/** The given runs and those that they delegated, without those of which a run has not ended. */
export async function endedRuns(tx: TenantTx, ids: readonly string[]): Promise<string[]> {
  const rows = await tx.query<{ id: string }>({
    text: `WITH RECURSIVE ${tree} SELECT DISTINCT id FROM (
             SELECT id, bool_and(finished_at IS NOT NULL) OVER (PARTITION BY root) AS ended FROM tree) t WHERE ended`,
    values: [tx.tenantId, ids],
  })
  return rows.map(({ id }) => id)
}

/** The given runs and all runs that they delegated. Their sessions are locked, so that none begins a run before the transaction ends. */
async function ownedRuns(tx: TenantTx, ids: readonly string[]): Promise<Owned[]> {
  const trees = (free: readonly string[]): Promise<Owned[]> =>
    tx.query<Owned>({
      text: `WITH RECURSIVE ${tree}
             SELECT root, id, session_id, finished_at IS NOT NULL
               AND (session_id = ANY($3) OR (SELECT s.id FROM sessions s WHERE s.tenant_id = $1 AND s.id = tree.session_id) IS NULL)
               AND (SELECT q.run_id FROM run_queue q WHERE q.tenant_id = $1 AND q.session_id = tree.session_id LIMIT 1) IS NULL
               AND (SELECT n.id FROM workflow_nodes n WHERE n.tenant_id = $1 AND n.waits_for = tree.id AND n.status = 2 LIMIT 1) IS NULL AS over
             FROM tree`,
      values: [tx.tenantId, ids, free],
    })
  const sessions = new Set((await trees([])).map(({ session_id }) => session_id))
  return trees(await lockFree(tx, [...sessions]))
}

/** Locks those of the sessions in which nothing is executed, and that nobody else has locked. Resolves to their ids. */
async function lockFree(tx: TenantTx, sessions: readonly string[]): Promise<string[]> {
  const free = await tx.query<{ id: string }>({
    text: `SELECT s.id FROM unnest($2::text[]) AS wanted (id) CROSS JOIN LATERAL (
             SELECT id FROM sessions WHERE tenant_id = $1 AND id = wanted.id AND claim_run IS NULL FOR UPDATE SKIP LOCKED) s`,
    values: [tx.tenantId, sessions],
  })
  return free.map(({ id }) => id)
}

/**
 * Deletes runs with everything that belongs to them, but for what `dropLogs` has deleted of their logs before, as this holds up their sessions, and shuts their sessions down, also those with runs of others: an agent remembers the person. Their
 * runners have still to be told, so the sessions are noted.
 */
async function deleteRuns(tx: TenantTx, runs: readonly Owned[], endUser: string): Promise<void> {
  if (runs.length === 0) return
  const sessions = [...new Set(runs.map(({ session_id }) => session_id))]
  await tx.query({
    text: `WITH events AS (DELETE FROM run_events WHERE tenant_id = $1 AND run_id = ANY($2)),
             deliveries AS (DELETE FROM webhook_deliveries WHERE tenant_id = $1 AND run_id = ANY($2)),
             marks AS (DELETE FROM run_marks m USING runs r WHERE r.tenant_id = $1 AND r.id = ANY($2)
               AND m.tenant_id = $1 AND m.status = r.status AND m.started_at = r.started_at AND m.run_id = r.id),
             repeats AS (DELETE FROM idempotency_keys WHERE tenant_id = $1 AND run_id = ANY($2)),
             noted AS (INSERT INTO erased_runs (tenant_id, run_id) SELECT $1, unnest($2::text[]) ON CONFLICT DO NOTHING)
           DELETE FROM runs WHERE tenant_id = $1 AND id = ANY($2)`,
    values: [tx.tenantId, runs.map(({ id }) => id)],
  })
  await tx.query({
    text: `WITH state AS (DELETE FROM session_state WHERE tenant_id = $1 AND session_id = ANY($2)),
             ends AS (DELETE FROM session_ends WHERE tenant_id = $1 AND session_id = ANY($2)),
             shut AS (UPDATE sessions SET status = 'shutdown', last_prompt = NULL
               WHERE tenant_id = $1 AND id = ANY($2) AND claim_run IS NULL RETURNING id, runner_hash)
           INSERT INTO end_user_sessions (tenant_id, person, session_id, runner_hash)
           SELECT $1, sha256(convert_to($3, 'UTF8')), id, runner_hash FROM shut ON CONFLICT DO NOTHING`,
    values: [tx.tenantId, sessions, endUser],
  })
}
