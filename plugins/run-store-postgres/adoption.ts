import type { Database } from '#contracts/database'
import type { Adopter, EndReason, Orphan } from '#contracts/run-store'
import { endTaken, type OrphanDeps } from './orphans.ts'
import { type TaskRow, toDurable, toTask } from './rows.ts'

// SKIP LOCKED: what another conductor is adopting is none of ours. Picked on their own: as a sub-select the limit may be
// applied again for each row.
const take = {
  name: 'run-take-retried',
  text: `
    WITH picked AS MATERIALIZED (
      SELECT id FROM runs WHERE tenant_id = $1 AND claim_owner = $2 AND started_at > now() - interval '25 hours'
        AND status = 'running' AND (SELECT s.profile_snapshot ->> 'onCrash' FROM sessions s
                                    WHERE s.tenant_id = $1 AND s.id = runs.session_id) = 'retry'
      ORDER BY started_at LIMIT $4 FOR UPDATE SKIP LOCKED
    ), taken AS (
      UPDATE runs SET claim_epoch = claim_epoch + 1, claim_owner = $3
      WHERE tenant_id = $1 AND status = 'running' AND id IN (SELECT id FROM picked)
      RETURNING id, session_id, claim_epoch, attempt, prompt, metadata, input, parent, started_at
    ), session AS (
      UPDATE sessions s SET claim_epoch = taken.claim_epoch, claim_owner = $3
      FROM taken WHERE s.tenant_id = $1 AND s.id = taken.session_id AND s.claim_run = taken.id
    )
    SELECT t.id AS run_id, t.claim_epoch::int AS epoch, t.attempt, t.prompt, t.metadata, t.input, t.parent,
      extract(epoch FROM clock_timestamp() - t.started_at) * 1000 AS elapsed,
      s.id, s.profile_snapshot, s.status, s.runtime_session_id, s.state_rev::int AS state_rev, s.runner_hash
    FROM taken t JOIN sessions s ON s.tenant_id = $1 AND s.id = t.session_id`,
}
const count = {
  name: 'run-count-attempts',
  text: 'UPDATE runs SET attempt = attempt + 1 WHERE tenant_id = $1 AND id = ANY($2)',
}

interface Row extends TaskRow {
  readonly epoch: number
  readonly attempt: number
  readonly elapsed: number | string
}

const toOrphan = (tenantId: string, row: Row): Orphan => ({
  claim: { tenantId, sessionId: row.id, runId: row.run_id, epoch: row.epoch },
  session: toDurable(row),
  attempt: row.attempt,
  elapsedMs: Math.round(Number(row.elapsed)),
  task: toTask(row),
})

export interface AdoptionOrder extends OrphanDeps {
  readonly db: Database
  readonly tenantId: string
  readonly owner: string
  readonly self: string
  readonly room: number
  readonly adopter: Adopter
}

/** Takes runs that are tried again from a dead owner, and ends those that may not be any more. Resolves to how many it took. */
export async function adoptOrphans(order: AdoptionOrder): Promise<number> {
  const { db, tenantId, owner, self, room, adopter, onWanted, prices } = order
  const { adopted, ended, wanted } = await db.tenant(tenantId, async (tx) => {
    const rows = await tx.query<Row>({ ...take, values: [tenantId, owner, self, room] })
    const going: Orphan[] = []
    const over = new Map<Orphan, EndReason>()
    for (const orphan of rows.map((row) => toOrphan(tenantId, row))) {
      const answer = adopter.wants(orphan)
      if (answer === true) going.push(orphan)
      else over.set(orphan, answer)
    }
    if (going.length > 0) await tx.query({ ...count, values: [tenantId, going.map(({ claim }) => claim.runId)] })
    const free: string[] = []
    for (const [{ claim }, reason] of over) {
      const taken = { id: claim.runId, session_id: claim.sessionId, epoch: claim.epoch }
      free.push(...(await endTaken(tx, [taken], 'interrupted', reason, prices)))
    }
    return { adopted: going, ended: over.size, wanted: free }
  })
  for (const orphan of adopted) adopter.adopt(orphan)
  for (const sessionId of wanted) onWanted(tenantId, sessionId)
  return adopted.length + ended
}
