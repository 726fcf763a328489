import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import {
  type RetentionDays,
  retentionErrors,
  type RetentionName,
  retentionNames,
  type TenantDataStore,
} from '#contracts/retention'
import type { Batches } from './batches.ts'
import { sweepData } from './data.ts'
import type { Figures } from './figures.ts'
import { batchOf } from './kinds.ts'
import type { EndUsers } from './people.ts'
import { Away } from './runners.ts'

interface Tenant {
  readonly id: string
  readonly retention: RetentionDays | null
  readonly legal_hold: boolean
  readonly due: boolean
}

/** Tenants whose data may have to be deleted or erased, in pages, because there may be many tenants. */
const tenants = {
  name: 'retention-tenants',
  text: `SELECT id, retention, legal_hold, deleted_at IS NOT NULL AND coalesce(erase_at <= now(), false) AS due FROM tenants
         WHERE id > $1 AND erased_at IS NULL ORDER BY id LIMIT 200`,
}
const dayMs = 24 * 3_600_000
/** How long one tenant may take in its first turn. The rest is deleted after all others, each time with twice the time. */
const usualTurnMs = 60_000
/** How many days the ids of erased runs are kept. A conductor that was down can learn from them which files to remove. */
const notesDays = 30

interface PassParts {
  readonly database: Database
  readonly batches: Batches
  readonly endUsers: Pick<EndUsers, 'enter' | 'asked' | 'resume' | 'leaveLost'>
  readonly defaults: RetentionDays
  readonly figures: Figures
  readonly data: ReadonlyMap<string, TenantDataStore>
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  readonly turnMs?: number
  tellHold(tenantId: string): Promise<void>
  eraseTenant(tenantId: string, signal: AbortSignal, away: Away): Promise<unknown>
}

/**
 * Goes through all tenants once. A tenant that fails is tried again in the next pass and does not delay the others. A tenant that takes long does not
 * either: tenants have turns, and those to be erased completely come behind the first turn of the others.
 */
export async function pass(parts: PassParts, signal: AbortSignal): Promise<void> {
  const { database, log, figures, turnMs = usualTurnMs } = parts
  const failures: unknown[] = []
  const late: Tenant[] = []
  const due: Tenant[] = []
  const away = new Away()
  let isUnheard = false
  // A server may be another one than at the last pass, or have got its folder back from a backup; one that was not told of the end of a hold would
  // keep the tenant's data for ever. One that does not answer is waited for once for all tenants without a hold.
  const tell = async ({ id, legal_hold }: Tenant): Promise<void> => {
    if (isUnheard && !legal_hold) return
    await parts.tellHold(id).catch((err: unknown) => {
      if (legal_hold) throw err
      isUnheard = true
      log.warn({ err, tenant: id }, 'it could not be told that there is no legal hold')
    })
  }
  const serve = async (tenant: Tenant, turn: AbortSignal): Promise<void> => {
    signal.throwIfAborted()
    const work = tell(tenant).then(() => passOf(parts, tenant, AbortSignal.any([signal, turn]), away))
    await work.catch((err: unknown) => {
      if (signal.aborted) throw err
      if (turn.aborted) return void late.push(tenant)
      if (isAppError(err) && err.code === retentionErrors.legalHold.row.code) return
      log.warn({ err, tenant: tenant.id }, 'expired data of a tenant could not be deleted; it is tried again')
      failures.push(err)
    })
  }
  figures.begin()
  for (let after = '', page: Tenant[]; ; after = page.at(-1)!.id) {
    ;[page] = await database.as('reads').systemBatch<[Tenant[]]>([{ ...tenants, values: [after] }])
    if (page.length === 0) break
    for (const tenant of page) {
      if (tenant.due) due.push(tenant)
      else await serve(tenant, AbortSignal.timeout(turnMs))
    }
  }
  late.push(...due)
  for (let ms = 2 * turnMs; late.length > 0; ms *= 2)
    for (const tenant of late.splice(0)) await serve(tenant, AbortSignal.timeout(ms))
  figures.end(failures.length === 0)
  if (failures.length > 0) throw new Error(`${failures.length} tenants failed`, { cause: failures[0] })
}

async function passOf(parts: PassParts, tenant: Tenant, signal: AbortSignal, away: Away): Promise<void> {
  const { batches, endUsers, defaults, figures, log } = parts
  const { id } = tenant
  if (tenant.legal_hold) return
  if (tenant.due) return void (await parts.eraseTenant(id, signal, away))
  await endUsers.enter(id, signal)
  for (const endUser of await endUsers.asked(id)) await endUsers.resume(id, endUser, signal, away)
  await endUsers.leaveLost(id, signal, away)
  signal.throwIfAborted()
  const days = { ...defaults, ...tenant.retention }
  const deleted: Record<string, number> = {}
  for (const kind of retentionNames) {
    const kept = days[kind]
    if (kept === undefined) continue
    Object.assign(deleted, await batches.all(id, batchOf(kind, new Date(Date.now() - kept * dayMs)), signal))
    figures.oldest(kind, await oldestOf(parts.database, id, kind))
  }
  await batches.all(id, oldNotes, signal)
  Object.assign(deleted, await sweepData(batches, parts.data, id, signal))
  if (Object.values(deleted).some((rows) => rows > 0)) log.info({ tenant: id, deleted }, 'expired data was deleted')
}

const oldNotes: Parameters<Batches['all']>[1] = async (tx, limit) => {
  const gone = await tx.query({
    text: `DELETE FROM erased_runs WHERE tenant_id = $1 AND run_id = ANY (ARRAY(
             SELECT run_id FROM erased_runs WHERE tenant_id = $1 AND at < now() - $2 * interval '1 day' ORDER BY at LIMIT $3))
           RETURNING 1`,
    values: [tx.tenantId, notesDays, limit],
  })
  return { deleted: {}, next: gone.length < limit ? undefined : [] }
}

/** The oldest record of each kind. Each query reads only the first entry of an index. */
const times: Readonly<Record<RetentionName, string>> = {
  runs: 'min(started_at) AS at FROM runs',
  // Of the runs behind the place up to which logs were deleted.
  logs: `min(started_at) AS at FROM (
    SELECT tenant_id, started_at FROM runs WHERE tenant_id = $1 AND started_at > coalesce((
      SELECT started_at FROM run_logs_seen WHERE tenant_id = $1), '-infinity')) unseen`,
  workflows: 'min(created_at) AS at FROM workflow_runs',
  messages: 'min(created_at) AS at FROM public_runs',
  audit: 'min(at) AS at FROM audit_entries',
  webhooks: 'min(created_at) AS at FROM webhook_deliveries',
  meters: 'min(recorded_at) AS at FROM run_meters',
  sessions: 'min(created_at) AS at FROM sessions',
}

async function oldestOf(database: Database, tenantId: string, kind: RetentionName): Promise<number> {
  const text = `SELECT coalesce(extract(epoch FROM now() - at), 0)::float8 AS seconds
                FROM (SELECT ${times[kind]} WHERE tenant_id = $1) AS oldest`
  const look = { name: `retention-oldest-${kind}`, text, values: [tenantId] }
  const [[row]] = await database.as('reads').batch<[{ seconds: number }[]]>(tenantId, [look])
  return row!.seconds
}
