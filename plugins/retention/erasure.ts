import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { AuditTrail } from '#contracts/audit'
import type { Database, TenantTx } from '#contracts/database'
import type { TenantDataStore } from '#contracts/retention'
import type { Batch } from './batches.ts'
import { partOf } from './data.ts'
import { openAuditLog } from './kinds.ts'
import { isLate, leaveRunners, type Leaving, type LeftSession, type Runners } from './runners.ts'
import { type Table, tenantedTables } from './tables.ts'

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
           (SELECT ${isLate} FROM tenants WHERE id = $1) AS late`,
}
/** From now on runners have a day to answer. */
const noteUntold = 'UPDATE tenants SET untold_since = coalesce(untold_since, clock_timestamp()) WHERE id = $1'
/** Keeps only the id of the tenant, since ids are never given twice. */
const finish = {
  text: `UPDATE tenants SET name = id, limits = '{}', limits_at = clock_timestamp(), retention = NULL, untold_since = NULL,
           erased_at = coalesce(erased_at, clock_timestamp()), erased_rows = coalesce(erased_rows, '{}')
         WHERE id = $1 AND NOT legal_hold RETURNING erased_rows`,
}

interface TenantErasureParts extends Runners {
  readonly database: Database
  /** Data of tenants that plugins keep outside the database. */
  readonly data: ReadonlyMap<string, TenantDataStore>
  readonly trail: AuditTrail
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  /** The tenant whose audit log records the erasure. */
  readonly operatorTenant: string
}

/** All sessions of a tenant. */
const sessionsOf = (late: boolean): Leaving => ({
  late,
  page: (tx, after, limit) =>
    tx.query<LeftSession>({
      text: 'SELECT id, runner_hash AS runner FROM sessions WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3',
      values: [tx.tenantId, after, limit],
    }),
  async drop(tx, ids, untold) {
    await tx.query({ text: 'DELETE FROM sessions WHERE tenant_id = $1 AND id = ANY($2)', values: [tx.tenantId, ids] })
    await count(tx, 'sessions', ids.length)
    // In the proof: sessions of which a runner may have a copy.
    if (untold > 0) await count(tx, 'untold_sessions', untold)
    return ids.length
  },
})

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
  const { database, trail, log, operatorTenant } = parts
  const look = { ...underWay, values: [tenantId] }
  const [[state]] = await database.batch<[{ busy: boolean; late: boolean }[]]>(tenantId, [look])
  if (state!.busy) return undefined
  const entry = await trail.begin({
    tenantId: operatorTenant,
    actor: { keyId: 'retention', role: 'operator' },
    action: 'tenants.erase',
    target: tenantId,
  })
  try {
    const { rows, untold } = await eraseAll(parts, tenantId, signal, state!.late)
    await trail.end(
      entry,
      rows ? { status: 200, detail: { rows } } : { status: 202, detail: { untold_sessions: untold } },
    )
    if (rows) log.info({ tenant: tenantId, rows }, 'a tenant was erased')
    return rows
  } catch (error) {
    // Its turn is over, or something failed: it goes on in another turn or pass, with an entry of its own.
    await trail.end(entry, { status: signal.aborted ? 202 : isAppError(error) ? error.status : 500 })
    throw error
  }
}

interface Erased {
  /** Undefined: it is not over, because of the runners that could not be told of so many sessions. */
  readonly rows: Readonly<Record<string, number>> | undefined
  readonly untold: number
}

async function eraseAll(
  parts: TenantErasureParts,
  tenantId: string,
  signal: AbortSignal,
  late: boolean,
): Promise<Erased> {
  const { database, batches, data } = parts
  const untold = await leaveRunners(parts, tenantId, sessionsOf(late), signal)
  if (untold > 0 && !late) {
    await batches.once(tenantId, (tx) => tx.query({ text: noteUntold, values: [tenantId] }))
    return { rows: undefined, untold }
  }
  const tables = await database.system((tx) => tenantedTables(tx))
  const round = async (): Promise<number> => {
    let rows = 0
    for (const [name, store] of data) {
      const part = partOf(name, (tx, ask) => ask((until) => store.erase(tx.tenantId, until)), count)
      const deleted = await batches.outside(tenantId, name, part, signal)
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
  return { rows, untold }
}
