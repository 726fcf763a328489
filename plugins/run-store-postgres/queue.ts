import type { Database, TenantTx } from '#contracts/database'
import {
  type EndReason,
  type EnqueueOutcome,
  type EnqueueRun,
  interruptedBy,
  maxQueued,
  type NextOutcome,
  type RunStore,
  sessionShutDown,
} from '#contracts/run-store'
import type { SessionStatus } from '#contracts/sessions'
import { endTaken, type Taken } from './ends.ts'
import type { OnWanted } from './orphans.ts'
import { prepared, type RunRow, runById, runValues, type TaskRow, toDurable, toRun, toTask } from './rows.ts'

// Whoever changes a queue holds its session's row: enqueue, claim and shutdown of one session happen one after the other, and
// the end of a run that is committing meanwhile is waited for and seen.
const lockSession = {
  name: 'queue-lock-session',
  text: `SELECT profile, status FROM sessions WHERE tenant_id = $1 AND id = $2 FOR UPDATE`,
}
const takeWaiting = {
  name: 'queue-take-waiting',
  text: `DELETE FROM run_queue WHERE tenant_id = $1 AND session_id = $2 AND (front OR NOT $3)
    RETURNING run_id AS id, session_id, 0 AS epoch`,
}
const shutdown = {
  name: 'session-shutdown',
  text: `UPDATE sessions SET status = 'shutdown' WHERE tenant_id = $1 AND id = $2`,
}
// What waits for nobody's session is nobody's: no owner, epoch 0.
const insert = prepared(
  'queue-insert',
  `WITH run AS (
     INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, metadata, claim_owner, claim_epoch, queued_at, webhook_url,
                       input, input_info)
     SELECT :tenant, :run, :session, :profile, 'queued', :prompt, :metadata::json, '', 0, clock_timestamp(), :webhook, :input::json,
       :inputInfo::json
     WHERE :front OR (SELECT count(*) FROM run_queue WHERE tenant_id = :tenant AND session_id = :session) < ${maxQueued}
     ON CONFLICT DO NOTHING RETURNING id
   ), seen AS (
     INSERT INTO run_queue_tenants (tenant_id) SELECT :tenant FROM run
     ON CONFLICT (tenant_id) DO UPDATE SET stamp = clock_timestamp()
   )
   INSERT INTO run_queue (tenant_id, session_id, run_id, front) SELECT :tenant, :session, id, :front FROM run RETURNING run_id`,
)

// The lock comes first and shows the row as its last holder left it. The row of the queue may be gone by then, and the next one
// is looked at: that is what FOR UPDATE does with a LIMIT.
const claimNext = {
  name: 'queue-claim-next',
  text: `
    WITH session AS (
      SELECT status, claim_run FROM sessions WHERE tenant_id = $1 AND id = $2 FOR UPDATE
    ), head AS (
      SELECT position, run_id, front FROM run_queue
      WHERE tenant_id = $1 AND session_id = $2 AND (SELECT status FROM session) <> 'shutdown'
      ORDER BY front DESC, position LIMIT 1 FOR UPDATE
    ), next AS (
      DELETE FROM run_queue WHERE tenant_id = $1 AND session_id = $2 AND position = (SELECT position FROM head)
        AND (SELECT status FROM session) IN ('idle', 'errored')
        AND EXISTS (SELECT 1 FROM instances WHERE id = $3 AND NOT dead)
      RETURNING run_id
    ), claimed AS (
      UPDATE sessions
      SET status = 'running', claim_owner = $3, claim_run = (SELECT run_id FROM next), claim_epoch = claim_epoch + 1,
          last_used_at = now(), run_count = run_count + 1,
          last_prompt = (SELECT left(prompt, 4000) FROM runs WHERE tenant_id = $1 AND id = (SELECT run_id FROM next))
      WHERE tenant_id = $1 AND id = $2 AND EXISTS (SELECT 1 FROM next)
      RETURNING *
    ), run AS (
      UPDATE runs SET status = 'running', claim_owner = $3, claim_epoch = (SELECT claim_epoch FROM claimed),
          ordinal = (SELECT run_count FROM claimed), started_at = clock_timestamp()
      WHERE tenant_id = $1 AND id = (SELECT claim_run FROM claimed)
      RETURNING id AS run_id, prompt, metadata, input
    )
    SELECT head.front, session.claim_run AS holder, head.run_id AS waiting, run.run_id, run.prompt, run.metadata, run.input,
      claimed.id, claimed.profile_snapshot, claimed.status, claimed.runtime_session_id, claimed.state_rev::int AS state_rev,
      claimed.runner_hash, claimed.claim_epoch::int AS epoch
    FROM head CROSS JOIN session LEFT JOIN claimed ON true LEFT JOIN run ON true`,
}

interface NextRow extends Omit<TaskRow, 'run_id'> {
  readonly front: boolean
  /** The run that held the session before, if any. */
  readonly holder: string | null
  readonly waiting: string
  /** Null: nothing was claimed. */
  readonly run_id: string | null
}

async function lock(tx: TenantTx, sessionId: string) {
  const values = [tx.tenantId, sessionId]
  const [session] = await tx.query<{ profile: string; status: SessionStatus }>({ ...lockSession, values })
  return session
}

async function cancelWaiting(tx: TenantTx, sessionId: string, why: EndReason, interruptsOnly: boolean): Promise<void> {
  const waiting = await tx.query<Taken>({ ...takeWaiting, values: [tx.tenantId, sessionId, interruptsOnly] })
  await endTaken(tx, waiting, 'cancelled', why)
}

export async function shutdownSession(
  db: Database,
  tenantId: string,
  sessionId: string,
): ReturnType<RunStore['shutdownSession']> {
  return db.tenant(tenantId, async (tx) => {
    const status = (await lock(tx, sessionId))?.status
    if (status !== 'idle' && status !== 'errored') return status
    await tx.query({ ...shutdown, values: [tenantId, sessionId] })
    await cancelWaiting(tx, sessionId, sessionShutDown, false)
    return 'shutdown'
  })
}

export async function enqueueRun(db: Database, run: EnqueueRun): Promise<EnqueueOutcome> {
  const { tenantId, runId, sessionId, task, interrupt } = run
  return db.tenant(tenantId, async (tx): Promise<EnqueueOutcome> => {
    const session = await lock(tx, sessionId)
    const [existing] = await tx.query<RunRow>({ ...runById, values: [tenantId, runId] })
    if (existing) return { kind: 'exists', run: toRun(existing) }
    if (!session || session.status === 'shutdown') return { kind: 'no_session' }
    if (session.profile !== task.profile) return { kind: 'other_profile', profile: session.profile }
    if (interrupt) await cancelWaiting(tx, sessionId, interruptedBy(runId), true)
    const queued = await tx.query(insert({ ...runValues(run), front: interrupt }))
    if (queued.length > 0) return { kind: 'queued' }
    const [taken] = await tx.query<RunRow>({ ...runById, values: [tenantId, runId] })
    return taken ? { kind: 'exists', run: toRun(taken) } : { kind: 'full' }
  })
}

export async function claimNextRun(
  db: Database,
  owner: string,
  tenantId: string,
  sessionId: string,
): Promise<NextOutcome> {
  const statement = { ...claimNext, values: [tenantId, sessionId, owner] }
  const [row] = await db.unit<NextRow>(tenantId, statement, { order: sessionId })
  if (!row) return { kind: 'none' }
  if (row.run_id === null) {
    return row.front && row.holder !== null
      ? { kind: 'held', runId: row.holder, interrupt: row.waiting }
      : { kind: 'none' }
  }
  return {
    kind: 'started',
    claim: { tenantId, sessionId, runId: row.run_id, epoch: row.epoch },
    session: { ...toDurable(row), status: 'running' },
    task: toTask({ ...row, run_id: row.run_id }),
  }
}

const listTenants = { name: 'queue-tenants', text: 'SELECT tenant_id, stamp::text AS stamp FROM run_queue_tenants' }
// What nobody may be about to start: the free sessions, and those that a waiting interrupt wants for itself.
const listWanted = {
  name: 'queue-wanted',
  text: `
    SELECT q.session_id, bool_or(q.front) OR s.status <> 'running' AS wanted
    FROM run_queue q JOIN sessions s ON s.tenant_id = q.tenant_id AND s.id = q.session_id
    WHERE q.tenant_id = $1 GROUP BY q.session_id, s.status`,
}
const forget = {
  name: 'queue-forget-tenant',
  text: 'DELETE FROM run_queue_tenants WHERE tenant_id = $1 AND stamp::text = $2',
}

/**
 * Tells of every session that runs wait for and nobody executes in. A conductor may die between the end of one run and the
 * start of the next, or between an interrupt and what it is for: then all the others hear of it here.
 */
export async function sweepQueues(db: Database, onWanted: OnWanted): Promise<void> {
  const [tenants] = await db.systemBatch<[{ tenant_id: string; stamp: string }[]]>([listTenants])
  for (const { tenant_id: tenantId, stamp } of tenants) {
    const [sessions] = await db.batch<[{ session_id: string; wanted: boolean }[]]>(tenantId, [
      { ...listWanted, values: [tenantId] },
    ])
    for (const { session_id, wanted } of sessions) if (wanted) onWanted(tenantId, session_id)
    if (sessions.length === 0) await db.systemBatch([{ ...forget, values: [tenantId, stamp] }])
  }
}
