import type { FastifyBaseLogger } from 'fastify'
import pLimit from 'p-limit'
import { isAppError } from '#kernel'
import type { AuditTrail } from '#contracts/audit'
import type { Database, TenantTx } from '#contracts/database'
import type { TenantDataStore } from '#contracts/retention'
import type { Fleet } from '#contracts/runner'
import type { Batch, Batches } from './batches.ts'
import type { LeftSession } from './conversations.ts'
import { partOf } from './data.ts'
import { openAuditLog } from './kinds.ts'
import { type Table, tenantedTables } from './tables.ts'

/** Calls of runners at once for one deletion. */
const callsAtOnce = 16
/** Sessions of one page of a tenant's. When each is on another runner that does not answer, their transaction is still in time. */
const sessionsAtOnce = 48

interface Runners {
  /** Undefined in a role without runners: then there are no other copies of sessions. */
  readonly fleet: Pick<Fleet, 'owner'> | undefined
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/**
 * Tells runners to delete their copies of sessions, with their sandboxes. Resolves to the sessions of which that failed: their runner keeps its copy
 * until it needs the room or restarts; no run can start in the session again. A runner that cannot be reached is noted in `away`, and is not asked
 * again. A runner that this conductor does not know any more is left out.
 */
export async function tellRunners(
  { fleet, log }: Runners,
  tenantId: string,
  sessions: readonly LeftSession[],
  away?: Set<string>,
): Promise<ReadonlySet<string>> {
  const untold = new Set<string>()
  const some = pLimit(callsAtOnce)
  const tell = async ({ id, runner }: LeftSession): Promise<void> => {
    const link = fleet?.owner(id, runner ?? undefined)
    if (!link) return
    try {
      if (!away?.has(link.hash)) return await link.deleteSession(tenantId, id)
    } catch (err) {
      // One session that fails, or takes too long, says nothing of the others of its runner.
      if (isAppError(err) && err.retryable) away?.add(link.hash)
      log.warn({ err, sessionId: id }, 'a runner could not be told that a session is erased')
    }
    untold.add(id)
  }
  await Promise.all(sessions.map((session) => some(() => tell(session))))
  return untold
}

/** Deletes rows of one table, whatever its key is. The same transaction counts them in the tenant's row. */
const rowsOf =
  ({ name, partitioned }: Table): Batch =>
  async (tx, limit) => {
    await openAuditLog(tx)
    const [row, rows] = partitioned ? ['(tableoid, ctid) IN (', 'tableoid, ctid'] : ['ctid = ANY (ARRAY(', 'ctid']
    const close = partitioned ? ')' : '))'
    const gone = await tx.query({
      text: `DELETE FROM ${name} WHERE ${row}SELECT ${rows} FROM ${name} WHERE tenant_id = $1 LIMIT $2${close} RETURNING 1`,
      values: [tx.tenantId, limit],
    })
    if (gone.length > 0) await count(tx, name, gone.length)
    return { deleted: { [name]: gone.length }, next: gone.length < limit ? undefined : [] }
  }

const count = (tx: TenantTx, table: string, rows: number): Promise<object[]> =>
  tx.query({
    text: `UPDATE tenants SET erased_rows = coalesce(erased_rows, '{}')
             || jsonb_build_object($2::text, coalesce((erased_rows ->> $2)::bigint, 0) + $3::bigint) WHERE id = $1`,
    values: [tx.tenantId, table, rows],
  })

/** Whether a run or node is still executed. The deletion of a tenant cancels its runs; nothing is erased until they have ended. */
const underWay = {
  text: `SELECT EXISTS (SELECT FROM runs WHERE tenant_id = $1 AND finished_at IS NULL)
           OR EXISTS (SELECT FROM workflow_nodes WHERE tenant_id = $1 AND status = 2 AND lease_until > clock_timestamp()) AS busy,
           (SELECT erase_at < now() - interval '1 day' FROM tenants WHERE id = $1) AS late`,
}
/** In the proof: sessions of which a runner may have a copy, since it did not answer for a day. An erasure that was cut off finds fewer. */
const noteUntold = {
  text: `UPDATE tenants SET erased_rows = coalesce(erased_rows, '{}')
           || jsonb_build_object('untold_sessions', greatest($2::int, (erased_rows ->> 'untold_sessions')::int)) WHERE id = $1`,
}
/** Keeps only the id of the tenant, since ids are never given twice. */
const finish = {
  text: `UPDATE tenants SET name = id, limits = '{}', limits_at = clock_timestamp(), retention = NULL,
           erased_at = coalesce(erased_at, clock_timestamp()), erased_rows = coalesce(erased_rows, '{}')
         WHERE id = $1 AND NOT legal_hold RETURNING erased_rows`,
}

interface TenantErasureParts extends Runners {
  readonly database: Database
  readonly batches: Batches
  /** Data of tenants that plugins keep outside the database. */
  readonly data: ReadonlyMap<string, TenantDataStore>
  readonly trail: AuditTrail
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  /** The tenant whose audit log records the erasure. */
  readonly operatorTenant: string
}

/**
 * Deletes the tenant's sessions, each after its runner was told, so that a walk that is cut off goes on where it was. Resolves to how many stay,
 * because their runner did not answer.
 */
async function leaveRunners(parts: TenantErasureParts, tenantId: string, signal: AbortSignal): Promise<number> {
  const away = new Set<string>()
  let untold = 0
  const some: Batch = async (tx, most, place) => {
    const limit = Math.min(most, sessionsAtOnce)
    const page = await tx.query<LeftSession>({
      text: 'SELECT id, runner_hash AS runner FROM sessions WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3',
      values: [tenantId, place?.[0] ?? '', limit],
    })
    const left = await tellRunners(parts, tenantId, page, away)
    untold += left.size
    const told = page.flatMap(({ id }) => (left.has(id) ? [] : [id]))
    await tx.query({ text: 'DELETE FROM sessions WHERE tenant_id = $1 AND id = ANY($2)', values: [tenantId, told] })
    if (told.length > 0) await count(tx, 'sessions', told.length)
    return { deleted: { sessions: told.length }, next: page.length < limit ? undefined : [page.at(-1)!.id] }
  }
  await parts.batches.all(tenantId, some, signal)
  return untold
}

/**
 * Erases a deleted tenant: the copies of its sessions on runners, every row with its id in every table, and its data outside the database. May stop
 * anywhere and be repeated. Resolves to the deleted rows by table, or undefined while something of the tenant is under way, or while a runner does
 * not answer, though for a day at most.
 */
export async function eraseTenant(
  parts: TenantErasureParts,
  tenantId: string,
  signal: AbortSignal,
): Promise<Readonly<Record<string, number>> | undefined> {
  const { database, batches, data, trail, log, operatorTenant } = parts
  const look = { ...underWay, values: [tenantId] }
  const [[state]] = await database.batch<[{ busy: boolean; late: boolean }[]]>(tenantId, [look])
  if (state!.busy) return undefined
  const entry = await trail.begin({
    tenantId: operatorTenant,
    actor: { keyId: 'retention', role: 'operator' },
    action: 'tenants.erase',
    target: tenantId,
  })
  const untold = await leaveRunners(parts, tenantId, signal)
  if (untold > 0 && !state!.late) {
    await trail.end(entry, { status: 202, detail: { untold_sessions: untold } })
    return undefined
  }
  if (untold > 0) await batches.once(tenantId, (tx) => tx.query({ ...noteUntold, values: [tenantId, untold] }))
  const tables = await database.system((tx) => tenantedTables(tx))
  const round = async (): Promise<number> => {
    let rows = 0
    for (const [name, store] of data) {
      const deleted = await batches.all(
        tenantId,
        partOf(name, (id) => store.erase(id), count),
        signal,
      )
      rows += deleted[name] ?? 0
    }
    for (const table of tables) {
      const deleted = await batches.all(tenantId, rowsOf(table), signal)
      rows += deleted[table.name] ?? 0
    }
    return rows
  }
  // Deleting a row may create another one (runners are told of deleted profiles), so rounds repeat until nothing is left.
  while ((await round()) > 0) signal.throwIfAborted()
  const close = (): Promise<{ erased_rows: Record<string, number> }[]> =>
    batches.once(tenantId, (tx) => tx.query({ ...finish, values: [tenantId] }))
  await close()
  // From now on no sweep looks at the tenant. A last round deletes what a sweep had just written.
  await round()
  const [{ erased_rows: rows } = { erased_rows: {} }] = await close()
  await trail.end(entry, { status: 200, detail: { rows } })
  log.info({ tenant: tenantId, rows }, 'a tenant was erased')
  return rows
}
