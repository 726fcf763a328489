import { unavailable } from '#kernel'
import { type Database, sqlState, type Statement } from '#contracts/database'
import type { Claim, FinishRun, StartOutcome, StartRun } from '#contracts/run-store'
import { microcentsPerCent } from '#contracts/prices'
import type { Usage } from '#contracts/run-event'
import type { LogChunk } from '#contracts/runs'
import { type DurableRow, inputOf, type RunRow, runColumns, storable, toDurable, toRun } from './rows.ts'

// A claim is refused to a process that was declared dead and has not noticed yet: nobody would sweep it again.
const ownerLives = 'EXISTS (SELECT 1 FROM instances WHERE id = $7 AND NOT dead)'

// A session that runs wait for is as busy as one that executes: who comes later does not overtake them. The table is nearly
// always empty.
const nobodyWaits = 'NOT EXISTS (SELECT 1 FROM run_queue WHERE tenant_id = $1 AND session_id = $3)'

// The run goes first: when its id is taken nothing is inserted at all, and no session is left behind.
const create = {
  name: 'run-start-new',
  text: `
    WITH run AS (
      INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, metadata, claim_owner, claim_epoch, ordinal, webhook_url,
                        input, input_info, parent)
      SELECT $1, $2, $3, $4, 'running', $5, $6::json, $7, 1, 1, $11, $12::json, $13::json, $14::jsonb WHERE ${ownerLives}
      ON CONFLICT DO NOTHING RETURNING id
    )
    INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status, last_prompt, run_count,
                          claim_owner, claim_run, claim_epoch)
    SELECT $1, $3, $4, $8, $9::jsonb, 'running', $10, 1, $7, $2, 1 FROM run
    RETURNING id, profile_snapshot, status, runtime_session_id, state_rev::int AS state_rev, runner_hash, 1 AS epoch`,
}

const claim = {
  name: 'run-start-claim',
  text: `
    WITH claimed AS (
      UPDATE sessions
      SET status = 'running', claim_owner = $7, claim_run = $2, claim_epoch = claim_epoch + 1,
          last_used_at = now(), last_prompt = $8, run_count = run_count + 1
      WHERE tenant_id = $1 AND id = $3 AND profile = $4 AND status IN ('idle', 'errored')
        AND NOT EXISTS (SELECT 1 FROM runs WHERE tenant_id = $1 AND id = $2) AND ${ownerLives} AND ${nobodyWaits}
      RETURNING id, profile_snapshot, status, runtime_session_id, state_rev, runner_hash, claim_epoch, run_count
    ), run AS (
      INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, metadata, claim_owner, claim_epoch, ordinal, webhook_url,
                        input, input_info)
      SELECT $1, $2, $3, $4, 'running', $5, $6::json, $7, claim_epoch, run_count, $9, $10::json, $11::json FROM claimed
    )
    SELECT id, profile_snapshot, status, runtime_session_id, state_rev::int AS state_rev, runner_hash, claim_epoch::int AS epoch
    FROM claimed`,
}

const whyNot = {
  name: 'run-start-why-not',
  text: `
    SELECT s.profile, s.status, s.claim_owner, i.id IS NULL OR i.dead OR i.lease_until < now() AS orphaned,
      EXISTS (SELECT 1 FROM run_queue q WHERE q.tenant_id = $1 AND q.session_id = $2) AS waiting
    FROM sessions s LEFT JOIN instances i ON i.id = s.claim_owner
    WHERE s.tenant_id = $1 AND s.id = $2`,
}

export const runById = {
  name: 'run-by-id',
  text: `SELECT ${runColumns} FROM runs WHERE tenant_id = $1 AND id = $2`,
}

// `finished_at IS NULL` is `status IN ('queued', 'running')` by constraint, and no claim has the epoch of a run that waits.
// Written so, the planner cannot take the partial index of running runs, which on a table without statistics it prefers to the
// primary key, and then reads every running run of the tenant. For the same reason `released` names its session by a
// sub-select: a join read every session of the tenant, 300 rows a run after 9,000 runs, until the first ANALYZE.
const stillRuns = 'finished_at IS NULL'

// The share lock makes an append and the end of its run wait for each other, so nothing lands behind the terminal event.
// A conflict is our own retry after a lost answer: only the holder of the epoch writes this log.
const append = {
  name: 'run-append',
  text: `
    WITH owned AS (
      SELECT 1 FROM runs WHERE tenant_id = $1 AND id = $2 AND ${stillRuns} AND claim_epoch = $3 FOR SHARE
    ), added AS (
      INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
      SELECT $1, $2, $4, $5, $6 FROM owned ON CONFLICT DO NOTHING
    )
    SELECT 1 FROM owned`,
}

const retry = {
  name: 'run-retry',
  text: `
    WITH owned AS (
      UPDATE runs SET attempt = $7 WHERE tenant_id = $1 AND id = $2 AND ${stillRuns} AND claim_epoch = $3 RETURNING 1
    ), added AS (
      INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
      SELECT $1, $2, $4, $5, $6 FROM owned ON CONFLICT DO NOTHING
    )
    SELECT 1 FROM owned`,
}

// A run in a sandbox is added to its session's meter of the minute, with the change that only one end of the run can make.
const finish = {
  name: 'run-finish',
  text: `
    WITH ended AS (
      UPDATE runs
      SET status = $4, finished_at = clock_timestamp(), result = $5, error_code = $6, error_message = $7, usage = $8::json,
          input = NULL
      WHERE tenant_id = $1 AND id = $2 AND ${stillRuns} AND claim_epoch = $3
      RETURNING id, session_id, profile, started_at, finished_at
    ), meter AS (
      INSERT INTO run_meters (tenant_id, run_id, session_id, profile, status, started_at, model, input_tokens, output_tokens,
                              cached_tokens, tool_calls, cost_microcents)
      SELECT $1, id, session_id, profile, $4, started_at, $14::text, $15::bigint, $16::bigint, $17::bigint, $18::int, $19::bigint FROM ended
    ), sandbox AS (
      INSERT INTO usage_meters AS m (tenant_id, meter, subject, minute, amount)
      SELECT $1, 'sandbox_seconds', session_id, date_trunc('minute', finished_at),
        $21::int + round(least(extract(epoch FROM finished_at - started_at), $22::int))::bigint
      FROM ended WHERE $21::int IS NOT NULL
      ON CONFLICT (tenant_id, meter, subject, minute) DO UPDATE SET amount = m.amount + excluded.amount, recorded_at = now()
    ), released AS (
      UPDATE sessions s
      SET status = $9, claim_owner = NULL, claim_run = NULL, last_run_status = $4, last_used_at = now(),
          runtime_session_id = coalesce($10, s.runtime_session_id), runner_hash = coalesce($20, s.runner_hash)
      WHERE s.tenant_id = $1 AND s.id = (SELECT session_id FROM ended) AND s.claim_run = $2
    ), tail AS (
      INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
      SELECT $1, $2, $11::int, $12::int, $13::bytea FROM ended WHERE $11::int IS NOT NULL
    )
    SELECT id, EXISTS (SELECT 1 FROM run_queue q WHERE q.tenant_id = $1 AND q.session_id = ended.session_id) AS waiting
    FROM ended`,
}

/** The statement that starts a run, and the whole transaction with it. */
export function startStatement(run: StartRun, owner: string): Statement {
  const { tenantId, runId, sessionId, task } = run
  const prompt = storable(task.prompt)
  const metadata = task.metadata === undefined ? null : JSON.stringify(task.metadata)
  const common = [tenantId, runId, sessionId, task.profile, prompt, metadata, owner]
  // The session row is rewritten by every run: it keeps a preview, the run the whole prompt.
  const preview = prompt.slice(0, 4_000)
  const webhook = task.webhook?.url ?? null
  const parent = task.parent ? JSON.stringify(task.parent) : null
  return run.create
    ? {
        ...create,
        values: [...common, run.create.runtime, JSON.stringify(run.create), preview, webhook, ...inputOf(task), parent],
      }
    : { ...claim, values: [...common, preview, webhook, ...inputOf(task)] }
}

export const appendStatement = (c: Claim, chunk: LogChunk): Statement => ({
  ...append,
  values: [c.tenantId, c.runId, c.epoch, chunk.firstSeq, chunk.count, chunk.lines],
})

export const retryStatement = (c: Claim, attempt: number, chunk: LogChunk): Statement => ({
  ...retry,
  values: [c.tenantId, c.runId, c.epoch, chunk.firstSeq, chunk.count, chunk.lines, attempt],
})

// A run without usage cost nothing; one whose model has no price cost something unknown.
const costOf = ({ costCents }: Usage): number | null =>
  costCents === undefined ? null : Math.round(costCents * microcentsPerCent)

export function finishStatement(end: FinishRun): Statement {
  const { claim: c, tail, usage } = end
  return {
    ...finish,
    values: [
      c.tenantId,
      c.runId,
      c.epoch,
      end.status,
      end.result === undefined ? null : storable(end.result),
      end.error === undefined ? null : storable(end.error.code),
      end.error === undefined ? null : storable(end.error.message),
      usage === undefined ? null : JSON.stringify(usage),
      end.sessionStatus,
      end.runtimeSessionId === undefined ? null : storable(end.runtimeSessionId),
      tail?.firstSeq ?? null,
      tail?.count ?? null,
      tail?.lines ?? null,
      usage?.model === undefined ? null : storable(usage.model),
      usage?.inputTokens ?? 0,
      usage?.outputTokens ?? 0,
      usage?.cachedTokens ?? 0,
      end.toolCalls ?? 0,
      usage === undefined ? 0 : costOf(usage),
      end.runner ?? null,
      end.sandbox?.idleSeconds ?? null,
      end.sandbox?.runSeconds ?? null,
    ],
  }
}

export interface StartDeps {
  readonly db: Database
  readonly owner: () => string
  /** Finds out whether this process itself was declared dead, and comes back under a new id if so. */
  readonly beat: () => Promise<void>
  /** Ends the runs of a tenant whose owner is dead. */
  readonly endOrphans: (tenantId: string, owner: string) => Promise<number>
}

/** What the end of a run answers: whether runs wait for the session that it has freed. No row: it was over. */
export interface EndedRow {
  readonly id: string
  readonly waiting: boolean
}

interface WhyNotRow {
  readonly profile: string
  readonly status: DurableRow['status']
  readonly claim_owner: string | null
  readonly orphaned: boolean
  readonly waiting: boolean
}

/** The id was taken between the look and the insert, or a session id drawn at random is in use. */
function taken(error: unknown): DurableRow[] {
  if (sqlState(error) === '23505') return []
  throw error
}

export async function startRun(deps: StartDeps, run: StartRun): Promise<StartOutcome> {
  const { db } = deps
  const { tenantId, runId, sessionId } = run
  const bytes = (run.task.attachments ?? []).reduce((sum, { data }) => sum + data.length, 0)
  // A refused start is looked at again when its reason is gone by then: a dead owner, or a run that has just ended.
  for (let attempt = 0; attempt < 4; attempt++) {
    const owner = deps.owner()
    const started = await db
      .unit<DurableRow>(tenantId, startStatement(run, owner), { order: sessionId, bytes })
      .catch(taken)
    const row = started[0]
    if (row) {
      return {
        kind: 'started',
        claim: { tenantId, sessionId, runId, epoch: row.epoch },
        session: { ...toDurable(row), status: 'running' },
      }
    }
    const [runs, sessions] = await db.batch<[RunRow[], WhyNotRow[]]>(tenantId, [
      { ...runById, values: [tenantId, runId] },
      { ...whyNot, values: [tenantId, sessionId] },
    ])
    if (runs[0]) return { kind: 'exists', run: toRun(runs[0]) }
    const session = sessions[0]
    if (run.create) {
      if (session) return { kind: 'busy' }
      await deps.beat()
      continue
    }
    if (!session || session.status === 'shutdown') return { kind: 'no_session' }
    if (session.profile !== run.task.profile) return { kind: 'other_profile', profile: session.profile }
    if (session.status !== 'running') {
      if (session.waiting) return { kind: 'busy' }
      await deps.beat()
      continue
    }
    if (!session.orphaned || session.claim_owner === null) return { kind: 'busy' }
    await deps.endOrphans(tenantId, session.claim_owner)
  }
  if (!run.create) return { kind: 'busy' }
  throw unavailable({ message: 'This server cannot claim runs now; try again.', retryable: true })
}
