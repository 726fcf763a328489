import type { Database } from '#contracts/database'
import type { RunStore } from '#contracts/run-store'
import type { Charges } from './charges.ts'
import { createEnds, type EndedAt } from './ends.ts'
import { createInstance, type Instance, type InstanceOptions } from './instance.ts'
import { createLostClaims } from './lost-claims.ts'
import { Orphans } from './orphans.ts'
import { createParkAgain, createParking } from './parking.ts'
import { createQueue } from './queue.ts'
import { createReads } from './reads.ts'
import { Rollups } from './rollups.ts'
import { createStarts } from './starts.ts'
import { createState } from './state.ts'
import { prepared } from './rows.ts'

export interface PostgresRunStoreOptions extends InstanceOptions, Partial<Charges> {
  readonly sweepMs: number
  /** Milliseconds that a claimed run may lack an executor before it counts as lost. */
  readonly strayMs?: number
}

export interface PostgresRunStore extends RunStore {
  /** Registers this process as an owner of claims and starts the sweeps for dead ones. */
  open(): Promise<void>
  /** Adds up the ended runs of a tenant now, `size` per transaction. A process also does so by itself after runs have ended. */
  rollUp(tenantId: string, size?: number): Promise<void>
  /** Signs this process off. Other processes sweep the runs that it still owns. */
  close(): Promise<void>
}

export function createPostgresRunStore(database: Database, options: PostgresRunStoreOptions): PostgresRunStore {
  const { prices, billing, log } = options
  const charges: Charges = { prices, billing }
  // Writes about claims have connections that no reader can take.
  const db = database.as('claims')
  const instance = createInstance(db, options)
  const waiters: Parameters<RunStore['onWaiting']>[0][] = []
  const onWanted = (tenantId: string, sessionId: string): void => {
    for (const waiter of waiters) waiter(tenantId, sessionId)
  }
  const orphans = new Orphans({ db, parkAgain: createParkAgain(db), instance, onWanted, charges, log })
  const steal: Orphans['steal'] = (...one) => orphans.steal(...one)
  const goOn: Orphans['goOn'] = (...one) => orphans.goOn(...one)
  const lostClaims = createLostClaims(db, instance, { steal, goOn }, options.strayMs)
  const { sweepQueues, ...queue } = createQueue({ db, instance, lostClaims, charges, onWanted })
  const endedAt: EndedAt = new Map()
  const rollups = new Rollups(database, { log, endedAt })
  let timer: NodeJS.Timeout | undefined
  let sweeping: Promise<unknown> = Promise.resolve()
  const warn = (what: string) => (err: unknown) => log.warn({ err }, `${what} failed`)
  const takeOver = (tenantId: string): void => void orphans.takeOver(tenantId).catch(warn('taking runs over'))
  const listen = (): Promise<void> => instance.listen(takeOver).catch(warn('listening to other conductors'))
  const sweep = (): void => {
    sweeping = Promise.all([
      orphans.sweep().catch(warn('the orphan sweep')),
      sweepQueues().catch(warn('the sweep of queues')),
      lostClaims.sweep().catch(warn('the look for lost claims')),
      listen(),
    ])
  }
  return {
    ...createReads(database),
    ...createState(database),
    ...createStarts({ db, instance, orphans, lostClaims, charges }),
    ...createEnds(db, charges, onWanted, endedAt),
    ...createTenantUse(db, database, instance),
    ...createParking({ db, instance, lostClaims, charges, onWanted }),
    ...queue,
    retreat: instance.retreat,
    steal,
    onWaiting: (listener) => void waiters.push(listener),
    requestEnd: instance.requestEnd,
    onEndRequested: instance.onEndRequested,
    onFenced: instance.onFenced,
    rollUp: (tenantId, size) => rollups.roll(tenantId, size),
    sweepOrphans: () => orphans.sweep(),
    onOrphan: (adopter) => orphans.giveTo(adopter),
    executing: lostClaims.executing,
    async open() {
      await instance.open()
      await listen()
      sweep()
      rollups.open()
      timer = setInterval(sweep, options.sweepMs).unref()
    },
    async close() {
      clearInterval(timer)
      await rollups.close()
      await sweeping
      await instance.close()
    },
  }
}

// The update itself counts what other processes hold, behind the row lock, so that two processes that ask at once cannot both get the remainder. A
// process that is dead, or whose lease has expired, counts as holding nothing.
const hold = prepared(
  'run-shares-hold',
  `INSERT INTO run_shares AS s (tenant_id, held)
   VALUES (:tenant, jsonb_build_object(:owner::text, least(:wanted::int, :max::int)))
   ON CONFLICT (tenant_id) DO UPDATE SET held = (
     SELECT coalesce(jsonb_object_agg(o.key, o.value::int), '{}') || jsonb_build_object(
       :owner::text, greatest(0, least(:wanted::int, :max::int - coalesce(sum(o.value::int), 0)))
     )
     FROM jsonb_each_text(s.held) o JOIN instances i ON i.id = o.key AND NOT i.dead AND i.lease_until > now()
     WHERE o.key <> :owner::text
   )
   RETURNING (held ->> :owner::text)::int AS count`,
)
const held = prepared(
  'run-shares-held',
  `SELECT coalesce(sum(o.value::int), 0)::int AS count
   FROM run_shares s, jsonb_each_text(s.held) o JOIN instances i ON i.id = o.key AND NOT i.dead AND i.lease_until > now()
   WHERE s.tenant_id = :tenant`,
)
// Each process keeps one row per hour, so at most 24 per day: few rows, however much is written.
const addLogBytes = prepared(
  'run-log-bytes',
  `WITH added AS (
     INSERT INTO usage_meters AS m (tenant_id, meter, subject, minute, amount)
     VALUES (:tenant, 'event_log_bytes', :owner, date_trunc('hour', now()), :bytes)
     ON CONFLICT (tenant_id, meter, subject, minute) DO UPDATE
       SET amount = m.amount + excluded.amount, recorded_at = now()
   )
   SELECT :bytes::float8 + coalesce(sum(amount), 0)::float8 AS count FROM usage_meters
   WHERE tenant_id = :tenant AND meter = 'event_log_bytes' AND minute >= date_trunc('day', now(), 'UTC')`,
)
const sessions = prepared(
  'sessions-count',
  `SELECT count(*)::int AS count FROM (
     SELECT 1 FROM sessions WHERE tenant_id = :tenant AND status <> 'shutdown' LIMIT :most
   ) counted`,
)
const waiting = prepared('queue-count', 'SELECT count(*)::int AS count FROM run_queue WHERE tenant_id = :tenant')

type Counts = Pick<RunStore, 'holdRuns' | 'countHeld' | 'countLogBytes' | 'countSessions' | 'countWaiting'>

/** How much each tenant uses of what its limits bound. `db` serves claims, `database` serves slow queries. */
function createTenantUse(db: Database, database: Database, instance: Instance): Counts {
  const reads = database.as('reads')
  const count = async (on: Database, tenantId: string, statement: ReturnType<typeof held>, order?: string) =>
    (await on.unit<{ count: number }>(tenantId, statement, order === undefined ? {} : { order }))[0]!.count
  return {
    holdRuns: (tenantId, wanted, max) =>
      count(db, tenantId, hold({ tenant: tenantId, owner: instance.id, wanted, max }), `run_shares ${tenantId}`),
    countHeld: (tenantId) => count(db, tenantId, held({ tenant: tenantId })),
    countLogBytes: (tenantId, bytes) =>
      count(db, tenantId, addLogBytes({ tenant: tenantId, owner: instance.id, bytes }), `log_bytes ${tenantId}`),
    async countSessions(tenantId, most) {
      const [[row]] = await reads.batch<[{ count: number }[]]>(tenantId, [sessions({ tenant: tenantId, most })])
      return row!.count
    },
    countWaiting: (tenantId) => count(db, tenantId, waiting({ tenant: tenantId })),
  }
}
