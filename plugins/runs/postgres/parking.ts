import type { Database } from '#contracts/database'
import type { RunStore } from '#contracts/run-store'
import type { Charges } from './charges.ts'
import type { OnWanted } from './ends.ts'
import type { Instance } from './instance.ts'
import type { LostClaims } from './lost-claims.ts'
import { asOrphans, asTaken, endTaken, type OrphanDeps, type OrphanRow, taking, toOrphan } from './orphans.ts'
import { attachmentBytes, claimed, prepared, read, type Taken } from './rows.ts'

/** The placeholder owner of runs that wait for people. No sweep looks for such runs, because nothing of them can be lost. */
export const parked = 'parked'

// Parking raises the epoch as a new claim would, so that later writes of the former owner are refused.
const park = prepared(
  'run-park',
  `WITH run AS (
     UPDATE runs SET claim_owner = '${parked}', claim_epoch = claim_epoch + 1, parked_at = clock_timestamp()
     WHERE ${claimed} RETURNING id, session_id, claim_epoch
   ), session AS (
     UPDATE sessions s SET claim_owner = '${parked}', claim_epoch = run.claim_epoch
     FROM run WHERE s.tenant_id = :tenant AND s.id = run.session_id AND s.claim_run = run.id
   )
   SELECT 1 FROM run`,
)
const isParked = `id = :run AND claim_owner = '${parked}'`
const sizeOf = prepared(
  'run-size-of-parked',
  `SELECT ${attachmentBytes} AS bytes FROM runs WHERE tenant_id = :tenant AND ${isParked}`,
)
// Requires a process that is not dead, because no sweep would find the run again. The waiting time counts anew from here. Until the next attempt is
// on record nothing of it was begun, so whoever finds the run without its owner parks it again.
const count = prepared(
  'run-count-wait',
  `UPDATE runs SET waited_ms = coalesce(waited_ms, 0) + round(extract(epoch FROM clock_timestamp() - parked_at) * 1000)::bigint,
     parked_at = clock_timestamp()
   WHERE tenant_id = :tenant AND ${isParked} AND status = 'running' AND EXISTS (SELECT 1 FROM instances WHERE id = :self AND NOT dead)
   RETURNING 1`,
)
const parkAgain = prepared(
  'run-park-again',
  `WITH run AS (
     UPDATE runs SET claim_owner = '${parked}', claim_epoch = claim_epoch + 1
     WHERE tenant_id = :tenant AND claim_owner = :owner AND waited_ms IS NOT NULL AND parked_at IS NOT NULL AND status = 'running'
       AND (:run::text IS NULL OR id = :run)
     RETURNING id, session_id, claim_epoch
   ), session AS (
     UPDATE sessions s SET claim_owner = '${parked}', claim_epoch = run.claim_epoch
     FROM run WHERE s.tenant_id = :tenant AND s.id = run.session_id AND s.claim_run = run.id
   )
   SELECT id FROM run`,
)
const resume = prepared('run-resume', `WITH ${taking(isParked)} ${asOrphans}`)
const takeParked = prepared('run-take-parked', `WITH ${taking(isParked)} ${asTaken}`)

interface ParkingDeps {
  readonly db: Database
  readonly instance: Instance
  readonly lostClaims: LostClaims
  readonly charges: Charges
  readonly onWanted: OnWanted
}

/** Parks again the runs, or the single run, that this owner took to resume but never began. Resolves to their ids. */
export const createParkAgain =
  (db: Database): OrphanDeps['parkAgain'] =>
  async (tenantId, owner, runId) =>
    (await read<{ id: string }>(db, tenantId, parkAgain({ tenant: tenantId, owner, run: runId }))).map(({ id }) => id)

/** Parked runs: nobody executes them, because people must decide about them first. */
export const createParking = ({ db, instance, lostClaims, charges, onWanted }: ParkingDeps) =>
  ({
    park: ({ tenantId, runId, epoch }, then) =>
      db.tenant(tenantId, async (tx) => {
        const rows = await tx.query(park({ tenant: tenantId, run: runId, epoch }))
        if (rows.length > 0) await then(tx)
        return rows.length > 0
      }),
    resume: (tenantId, runId, admits = () => true) =>
      db
        .tenant(tenantId, async (tx) => {
          const values = { tenant: tenantId, run: runId, self: instance.id }
          // A run that is not admitted is asked for again and again, so nothing is written for it.
          const [waits] = await tx.query<{ bytes: number }>(sizeOf(values))
          if (!waits || (waits.bytes > 0 && !admits(runId, waits.bytes))) return undefined
          if ((await tx.query(count(values))).length === 0) return undefined
          const [row] = await tx.query<OrphanRow>(resume(values))
          return row && toOrphan(tenantId, row, parked)
        })
        .catch((error: unknown) => lostClaims.doubt(tenantId, error)),
    async endParked(tenantId, runId, status, reason) {
      const { taken, wanted } = await db.tenant(tenantId, async (tx) => {
        const values = { tenant: tenantId, run: runId, self: instance.id }
        await tx.query(count(values))
        const rows = await tx.query<Taken>(takeParked(values))
        return { taken: rows.length > 0, wanted: await endTaken(tx, rows, status, reason, charges) }
      })
      for (const sessionId of wanted) onWanted(tenantId, sessionId)
      return taken
    },
  }) satisfies Partial<RunStore>
