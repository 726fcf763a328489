import type { Database } from '#contracts/database'
import { type RunStore, sessionShutDown } from '#contracts/run-store'
import type { SessionStatus } from '#contracts/sessions'
import { endTaken, type Taken } from './ends.ts'
import { storable } from './rows.ts'

const lockSession = {
  name: 'session-lock',
  text: `SELECT status FROM sessions WHERE tenant_id = $1 AND id = $2 FOR UPDATE`,
}
const shutdown = {
  name: 'session-shutdown',
  text: `UPDATE sessions SET status = 'shutdown' WHERE tenant_id = $1 AND id = $2`,
}
const takeWaiting = {
  name: 'session-take-waiting',
  text: `DELETE FROM run_queue WHERE tenant_id = $1 AND session_id = $2 RETURNING run_id AS id, session_id, 0 AS epoch`,
}

// Bundle and count move together; a session that is gone or shut down keeps nothing, nor does one whose conversation has
// gone on since: a conductor that was frozen between the export and this must not put the old copy over a newer one.
const save = {
  name: 'session-save-state',
  text: `
    WITH kept AS (
      UPDATE sessions SET state_rev = state_rev + 1, runtime_session_id = coalesce($5, runtime_session_id)
      WHERE tenant_id = $1 AND id = $2 AND status <> 'shutdown' AND coalesce(runner_hash, $6) = $6
        AND claim_epoch = $7 AND claim_run IS NULL
      RETURNING id
    )
    INSERT INTO session_state (tenant_id, session_id, content_type, bytes, runtime_session_id)
    SELECT $1, $2, $3, $4, $5 FROM kept
    ON CONFLICT (tenant_id, session_id) DO UPDATE
    SET content_type = excluded.content_type, bytes = excluded.bytes,
        runtime_session_id = excluded.runtime_session_id, saved_at = now()
    RETURNING session_id`,
}
const load = {
  name: 'session-load-state',
  text: `SELECT content_type, bytes, runtime_session_id FROM session_state WHERE tenant_id = $1 AND session_id = $2`,
}

interface StateRow {
  readonly content_type: string
  readonly bytes: Buffer
  readonly runtime_session_id: string | null
}

type State = Pick<RunStore, 'shutdownSession' | 'saveState' | 'loadState'>

export const createState = (db: Database): State => ({
  async shutdownSession(tenantId, sessionId) {
    const values = [tenantId, sessionId]
    return db.tenant(tenantId, async (tx) => {
      const [session] = await tx.query<{ status: SessionStatus }>({ ...lockSession, values })
      if (session?.status === 'idle' || session?.status === 'errored') {
        await tx.query({ ...shutdown, values })
        await endTaken(tx, await tx.query<Taken>({ ...takeWaiting, values }), 'cancelled', sessionShutDown)
        return 'shutdown'
      }
      return session?.status
    })
  },
  async saveState(tenantId, sessionId, bundle, { runner, epoch }) {
    const bytes = Buffer.from(bundle.bytes.buffer, bundle.bytes.byteOffset, bundle.bytes.byteLength)
    const handle = bundle.runtimeSessionId === undefined ? null : storable(bundle.runtimeSessionId)
    const statement = { ...save, values: [tenantId, sessionId, bundle.contentType, bytes, handle, runner, epoch] }
    const saved = await db.unit(tenantId, statement, { order: sessionId, bytes: bytes.length })
    return saved.length > 0
  },
  async loadState(tenantId, sessionId) {
    const [rows] = await db.batch<[StateRow[]]>(tenantId, [{ ...load, values: [tenantId, sessionId] }])
    const row = rows[0]
    if (!row) return undefined
    return {
      bytes: row.bytes,
      contentType: row.content_type,
      ...(row.runtime_session_id === null ? {} : { runtimeSessionId: row.runtime_session_id }),
    }
  },
})
