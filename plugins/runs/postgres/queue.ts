import type { Database, TenantTx } from '#contracts/database'
import {
  type AdmitAttachments,
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
import { type Charges, holding, holdValues } from './charges.ts'
import type { OnWanted } from './ends.ts'
import type { Instance } from './instance.ts'
import type { LostClaims } from './lost-claims.ts'
import { endTaken } from './orphans.ts'
import {
  attachmentBytes,
  durableColumns,
  prepared,
  read,
  type RunRow,
  runById,
  type Taken,
  type TaskRow,
  toDurable,
  toRun,
  toTask,
} from './rows.ts'
import { runValues } from './starts.ts'

// Every change of a queue locks the session's row, so enqueue, claim and shutdown of one session are serialized. The lock also waits for the end of
// a run that is just committing, and then sees it.
const lockSession = prepared(
  'queue-lock-session',
  'SELECT profile, status, claim_run AS holder FROM sessions WHERE tenant_id = :tenant AND id = :session FOR UPDATE',
)
const takeWaiting = prepared(
  'queue-take-waiting',
  `DELETE FROM run_queue WHERE tenant_id = :tenant AND session_id = :session AND (front OR NOT :interruptsOnly)
   RETURNING run_id AS id, session_id, 0 AS epoch`,
)
const shutdown = prepared(
  'session-shutdown',
  `UPDATE sessions SET status = 'shutdown' WHERE tenant_id = :tenant AND id = :session`,
)
// Announces the tenant to sweeps. The row lock serializes the tenant's enqueues, so that each run is counted before the next one.
const lockTenant = prepared(
  'queue-lock-tenant',
  `INSERT INTO run_queue_tenants (tenant_id) VALUES (:tenant)
   ON CONFLICT (tenant_id) DO UPDATE SET stamp = clock_timestamp()`,
)
const waitingRuns = prepared(
  'queue-waiting',
  `SELECT count(*)::int AS waiting, count(*) FILTER (WHERE session_id = :session)::int AS here
   FROM run_queue WHERE tenant_id = :tenant`,
)
// A queued run has no owner, and epoch 0.
const inserting = (held: string): string => `
   WITH run AS (
     INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, metadata, claim_owner, claim_epoch, queued_at, webhook_url,
                       input, input_info, end_user_id)
     SELECT :tenant, :run, :session, :profile, 'queued', :prompt, :metadata::json, '', 0, clock_timestamp(), :webhook, :input::json,
       :inputInfo::json, :person
     ON CONFLICT DO NOTHING RETURNING id${held}
   )
   INSERT INTO run_queue (tenant_id, session_id, run_id, front) SELECT :tenant, :session, id, :front FROM run RETURNING run_id`
const snapshot = '(SELECT profile_snapshot FROM sessions WHERE tenant_id = :tenant AND id = :session)'
const insert = {
  free: prepared('queue-insert', inserting('')),
  // A queued run holds money from the start, as an executing one does: a run that was accepted is not refused later.
  billed: prepared('queue-insert-billed', inserting(holding.some.held(snapshot))),
}

// The lock comes first, so that the row is read as its last holder left it. If the queue row is gone by then, FOR UPDATE with LIMIT moves on to the
// next row. `brings` is null unless the session is free. A null `room` is room for everything.
const claimNext = prepared(
  'queue-claim-next',
  `WITH session AS (
      SELECT status, claim_run FROM sessions WHERE tenant_id = :tenant AND id = :session FOR UPDATE
    ), head AS (
      SELECT position, run_id, front FROM run_queue
      WHERE tenant_id = :tenant AND session_id = :session AND (SELECT status FROM session) <> 'shutdown'
      ORDER BY front DESC, position LIMIT 1 FOR UPDATE
    ), size AS (
      SELECT ${attachmentBytes} AS brings FROM runs
      WHERE :room::float8 IS NOT NULL AND tenant_id = :tenant AND id = (SELECT run_id FROM head)
        AND (SELECT status FROM session) IN ('idle', 'errored')
    ), next AS (
      DELETE FROM run_queue WHERE tenant_id = :tenant AND session_id = :session AND position = (SELECT position FROM head)
        AND (SELECT status FROM session) IN ('idle', 'errored') AND NOT EXISTS (SELECT 1 FROM size WHERE brings > :room)
        AND EXISTS (SELECT 1 FROM instances WHERE id = :owner AND NOT dead)
      RETURNING run_id
    ), claimed AS (
      UPDATE sessions
      SET status = 'running', claim_owner = :owner, claim_run = (SELECT run_id FROM next), claim_epoch = claim_epoch + 1,
          last_used_at = now(), run_count = run_count + 1,
          last_prompt = (SELECT left(prompt, 4000) FROM runs WHERE tenant_id = :tenant AND id = (SELECT run_id FROM next))
      WHERE tenant_id = :tenant AND id = :session AND EXISTS (SELECT 1 FROM next)
      RETURNING ${durableColumns}, run_count, claim_run
    ), run AS (
      UPDATE runs SET status = 'running', claim_owner = :owner, claim_epoch = (SELECT epoch FROM claimed),
          ordinal = (SELECT run_count FROM claimed), started_at = clock_timestamp()
      WHERE tenant_id = :tenant AND id = (SELECT claim_run FROM claimed)
      RETURNING id AS run_id, prompt, metadata, input
    )
    SELECT head.front, session.claim_run AS holder, head.run_id AS waiting, size.brings, run.run_id, run.prompt, run.metadata,
      run.input, claimed.*
    FROM head CROSS JOIN session LEFT JOIN size ON true LEFT JOIN claimed ON true LEFT JOIN run ON true`,
)

interface NextRow extends Omit<TaskRow, 'run_id'> {
  readonly front: boolean
  /** The run that held the session before. Null: none did. */
  readonly holder: string | null
  readonly waiting: string
  /** Bytes of attachments of the first waiting run. */
  readonly brings: number | null
  /** Null: nothing was claimed. */
  readonly run_id: string | null
}

interface LockedRow {
  readonly profile: string
  readonly status: SessionStatus
  /** The run that holds the session. Null: none does. */
  readonly holder: string | null
}

const listTenants = prepared('queue-tenants', 'SELECT tenant_id, stamp::text AS stamp FROM run_queue_tenants')({})
// Sessions whose queue perhaps no process is advancing: free sessions, and sessions with a waiting interrupt.
const listWanted = prepared(
  'queue-wanted',
  `SELECT q.session_id, q.front OR s.status <> 'running' AS wanted
   FROM (SELECT session_id, bool_or(front) AS front FROM run_queue WHERE tenant_id = :tenant GROUP BY session_id) q
     CROSS JOIN LATERAL (SELECT status FROM sessions WHERE tenant_id = :tenant AND id = q.session_id OFFSET 0) s`,
)
const forget = prepared(
  'queue-forget-tenant',
  'DELETE FROM run_queue_tenants WHERE tenant_id = :tenant AND stamp::text = :stamp',
)

interface QueueDeps {
  readonly db: Database
  readonly instance: Instance
  readonly lostClaims: LostClaims
  readonly charges: Charges
  readonly onWanted: OnWanted
}

/** Claims the next run of a session. Most runs bring no attachments, so the first question leaves no room for any. */
function createClaim(db: Database, instance: Instance) {
  const claim = async (
    tenantId: string,
    sessionId: string,
    admits?: AdmitAttachments,
    room = admits ? 0 : undefined,
  ): Promise<NextOutcome> => {
    const statement = claimNext({ tenant: tenantId, session: sessionId, owner: instance.id, room })
    const [row] = await db.unit<NextRow>(tenantId, statement, { order: sessionId })
    if (!row) return { kind: 'none' }
    const { run_id: runId, epoch, front, holder, waiting, brings } = row
    if (room !== undefined && runId === null && brings !== null && brings > room)
      return admits!(waiting, brings) ? claim(tenantId, sessionId, admits, brings) : { kind: 'none' }
    if (runId === null)
      return front && holder !== null ? { kind: 'held', runId: holder, interrupt: waiting } : { kind: 'none' }
    return {
      kind: 'started',
      claim: { tenantId, sessionId, runId, epoch },
      session: { ...toDurable(row), status: 'running' },
      task: toTask({ ...row, run_id: runId }),
    }
  }
  return claim
}

/** The store's operations on queued runs, which wait for their sessions. */
export function createQueue({ db, instance, lostClaims, charges, onWanted }: QueueDeps) {
  const { billing } = charges
  const cancelWaiting = async (tx: TenantTx, session: string, why: EndReason, interruptsOnly: boolean) => {
    const waiting = await tx.query<Taken>(takeWaiting({ tenant: tx.tenantId, session, interruptsOnly }))
    await endTaken(tx, waiting, 'cancelled', why, charges)
  }
  const claim = createClaim(db, instance)
  const enqueue = (run: EnqueueRun) =>
    db.tenant(run.tenantId, async (tx): Promise<EnqueueOutcome> => {
      const { runId, task, interrupt, most = Infinity } = run
      const values = runValues(run)
      const existing = async (): Promise<RunRow | undefined> => (await tx.query<RunRow>(runById(values)))[0]
      const [session] = await tx.query<LockedRow>(lockSession(values))
      const before = await existing()
      if (before) return { kind: 'exists', run: toRun(before) }
      if (!session || session.status === 'shutdown') return { kind: 'no_session' }
      if (session.profile !== task.profile) return { kind: 'other_profile', profile: session.profile }
      await tx.query(lockTenant(values))
      const [count] = await tx.query<{ waiting: number; here: number }>(waitingRuns(values))
      if (count!.waiting >= most) return { kind: 'tenant_full' }
      if (!interrupt && count!.here >= maxQueued) return { kind: 'full' }
      if (interrupt) await cancelWaiting(tx, run.sessionId, interruptedBy(runId), true)
      const row = { ...values, front: interrupt }
      const queued = await tx.query(billing ? insert.billed({ ...row, ...holdValues(billing, run) }) : insert.free(row))
      const { holder } = session
      if (queued.length > 0) return { kind: 'queued', ...(interrupt && holder !== null ? { holder } : {}) }
      return { kind: 'exists', run: toRun((await existing())!) }
    })
  return {
    claimNext: (tenantId, sessionId, admits) =>
      claim(tenantId, sessionId, admits).catch((error: unknown) => lostClaims.doubt(tenantId, error)),
    enqueue: (run) =>
      enqueue(run).catch((error: unknown) => {
        const why = billing?.refusalOf(error)
        if (why) return { kind: 'unfunded', why }
        throw error
      }),
    shutdownSession: (tenantId, session) =>
      db.tenant(tenantId, async (tx) => {
        const values = { tenant: tenantId, session }
        const status = (await tx.query<LockedRow>(lockSession(values)))[0]?.status
        if (status !== 'idle' && status !== 'errored') return status
        await tx.query(shutdown(values))
        await cancelWaiting(tx, session, sessionShutDown, false)
        return 'shutdown'
      }),
    /**
     * Announces every session that has queued runs and executes none. A conductor may die between the end of one run and the start of the next, or
     * between an interrupt and its run; the other conductors learn of the session here.
     */
    async sweepQueues(): Promise<void> {
      const [tenants] = await db.systemBatch<[{ tenant_id: string; stamp: string }[]]>([listTenants])
      for (const { tenant_id: tenantId, stamp } of tenants) {
        const sessions = await read<{ session_id: string; wanted: boolean }>(
          db,
          tenantId,
          listWanted({ tenant: tenantId }),
        )
        for (const { session_id, wanted } of sessions) if (wanted) onWanted(tenantId, session_id)
        if (sessions.length === 0) await db.systemBatch([forget({ tenant: tenantId, stamp })])
      }
    },
  } satisfies Partial<RunStore> & { sweepQueues(): Promise<void> }
}
