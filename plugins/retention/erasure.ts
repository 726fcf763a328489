import type { FastifyBaseLogger } from 'fastify'
import { notFound } from '#kernel'
import type { AuditTrail } from '#contracts/audit'
import type { Database, TenantTx } from '#contracts/database'
import type { EndUserStore, TenantDataStore } from '#contracts/retention'
import type { Fleet } from '#contracts/runner'
import type { Batch, Batches } from './batches.ts'
import { partOf, sweepData } from './data.ts'
import { clearConversations, closeIdle, type LeftSession } from './conversations.ts'
import { openAuditLog } from './kinds.ts'
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
           OR EXISTS (SELECT FROM workflow_nodes WHERE tenant_id = $1 AND status = 2 AND lease_until > clock_timestamp()) AS busy`,
}
/** Keeps only the id of the tenant, since ids are never given twice. */
const finish = {
  text: `UPDATE tenants SET name = id, limits = '{}', limits_at = clock_timestamp(), retention = NULL,
           erased_at = coalesce(erased_at, clock_timestamp()), erased_rows = coalesce(erased_rows, '{}')
         WHERE id = $1 AND NOT legal_hold RETURNING erased_rows`,
}

interface TenantErasureParts {
  readonly database: Database
  readonly batches: Batches
  /** Data of tenants that plugins keep outside the database. */
  readonly data: ReadonlyMap<string, TenantDataStore>
  readonly trail: AuditTrail
  readonly log: Pick<FastifyBaseLogger, 'info'>
  /** The tenant whose audit log records the erasure. */
  readonly operatorTenant: string
}

/**
 * Erases a deleted tenant: every row with its id in every table, and its data outside the database. May stop anywhere and be repeated. Resolves to
 * the deleted rows by table, or undefined while something of the tenant is under way.
 */
export async function eraseTenant(
  { database, batches, data, trail, log, operatorTenant }: TenantErasureParts,
  tenantId: string,
  signal: AbortSignal,
): Promise<Readonly<Record<string, number>> | undefined> {
  const [[state]] = await database.batch<[{ busy: boolean }[]]>(tenantId, [{ ...underWay, values: [tenantId] }])
  if (state!.busy) return undefined
  const entry = await trail.begin({
    tenantId: operatorTenant,
    actor: { keyId: 'retention', role: 'operator' },
    action: 'tenants.erase',
    target: tenantId,
  })
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

/** Conversations per read, and public runs that are deleted in one transaction. */
const conversationsAtOnce = 20
const runsAtOnce = 25

/** What an erasure has deleted so far, and what is left. */
interface Erased {
  readonly conversations: number
  readonly messages: number
  readonly runs: number
  readonly sessions: number
  /** Deleted data of plugins, by the plugins' names for it. */
  readonly data: Readonly<Record<string, number>>
  /** Conversations with something under way, or for which there was no time. They are erased when that is over. */
  readonly pending: number
}

interface EndUsersParts {
  readonly database: Database
  readonly batches: Batches
  readonly trail: AuditTrail
  /** Undefined in a role without runners: then there are no other copies of sessions. */
  readonly fleet: Pick<Fleet, 'owner'> | undefined
  /** Data about people that plugins keep besides the conversations. */
  readonly people: ReadonlyMap<string, EndUserStore>
  /** Data for runs that plugins keep outside the database. */
  readonly data: ReadonlyMap<string, TenantDataStore>
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/** End users, whom tenants name in their chats. Finds them, and erases them with all that they said and were answered. */
export class EndUsers {
  readonly #parts: EndUsersParts

  constructor(parts: EndUsersParts) {
    this.#parts = parts
  }

  /** The conversations of an end user in the order of ids, after `after`. */
  async conversations(tenantId: string, endUserId: string, after: string, limit: number): Promise<string[]> {
    const page = {
      name: 'end-user-conversations',
      text: `SELECT DISTINCT conversation_id AS id FROM public_runs
             WHERE tenant_id = $1 AND end_user_id = $2 AND conversation_id > $3 ORDER BY 1 LIMIT $4`,
      values: [tenantId, endUserId, after, limit],
    }
    const [rows] = await this.#parts.database.as('reads').batch<[{ id: string }[]]>(tenantId, [page])
    return rows.map(({ id }) => id)
  }
  /** Records and begins the erasure of an end user. Rejects with 404 when the tenant has no data of this end user, and with 409 under a legal hold. */
  async request(tenantId: string, endUserId: string, signal: AbortSignal): Promise<Erased> {
    const isElsewhere = await this.isElsewhere(tenantId, endUserId)
    await this.#parts.batches.once(tenantId, async (tx) => {
      const [known] = await tx.query({
        text: `WITH known AS (SELECT 1 WHERE $3::boolean UNION ALL
                 SELECT 1 FROM public_runs WHERE tenant_id = $1 AND end_user_id = $2 LIMIT 1)
               INSERT INTO end_user_erasures (tenant_id, end_user_id) SELECT $1, $2 FROM known
               ON CONFLICT (tenant_id, end_user_id) DO UPDATE SET asked_at = end_user_erasures.asked_at RETURNING 1`,
        values: [tenantId, endUserId, isElsewhere],
      })
      if (!known) throw notFound()
    })
    return this.erase(tenantId, endUserId, signal)
  }
  /** True when plugins keep data of an end user besides the conversations. */
  async isElsewhere(tenantId: string, endUserId: string): Promise<boolean> {
    for (const store of this.#parts.people.values()) {
      for await (const items of store.items(tenantId, endUserId)) if (items.length > 0) return true
    }
    return false
  }
  /** The end users whose erasure has not ended. */
  async asked(tenantId: string): Promise<string[]> {
    const list = { text: 'SELECT end_user_id AS id FROM end_user_erasures WHERE tenant_id = $1', values: [tenantId] }
    const [rows] = await this.#parts.database.as('reads').batch<[{ id: string }[]]>(tenantId, [list])
    return rows.map(({ id }) => id)
  }
  /** Continues an unfinished erasure, and records its end in the audit log. */
  async resume(tenantId: string, endUserId: string, signal: AbortSignal): Promise<void> {
    const { trail } = this.#parts
    const erased = await this.erase(tenantId, endUserId, signal)
    if (erased.pending > 0) return
    const actor = { keyId: 'retention', role: 'operator' }
    const entry = await trail.begin({ tenantId, actor, action: 'end-users.erased', target: endUserId })
    await trail.end(entry, { status: 200, detail: { ...erased } })
  }
  /** Erases an end user. Stops between two transactions when the signal aborts; `pending` then counts what is left. */
  async erase(tenantId: string, endUserId: string, signal: AbortSignal): Promise<Erased> {
    const total = { conversations: 0, messages: 0, runs: 0, sessions: 0 }
    const data: Record<string, number> = {}
    // Plugin data goes first, because some of it is only known through the chats. What arrives meanwhile is erased once more after them.
    await this.#eraseData(tenantId, endUserId, data, signal)
    let ids: string[] = []
    for (let after = ''; !signal.aborted; after = ids.at(-1)!) {
      ids = await this.conversations(tenantId, endUserId, after, conversationsAtOnce)
      if (ids.length === 0) break
      const page = ids
      const closed = await this.#parts.batches.once(tenantId, (tx) => closeIdle(tx, page))
      for (const id of closed) await this.#clear(tenantId, id, endUserId, total, signal)
    }
    await this.#eraseData(tenantId, endUserId, data, signal)
    await this.#untell(tenantId, endUserId)
    // The objects of erased runs are deleted before the end of the erasure is recorded.
    await sweepData(this.#parts.batches, this.#parts.data, tenantId, signal)
    const left = await this.conversations(tenantId, endUserId, '', 1_000)
    const held = await this.#unspend(tenantId, endUserId)
    // An erasure that ran out of time cannot know that nothing is left, so it counts as pending.
    const pending = left.length === 0 && (signal.aborted || held) ? 1 : left.length
    if (pending === 0) await this.#forget(tenantId, endUserId)
    return { ...total, data, pending }
  }

  /** Erases the data of plugins, and adds the deleted amounts to `data`. */
  async #eraseData(
    tenantId: string,
    endUserId: string,
    data: Record<string, number>,
    signal: AbortSignal,
  ): Promise<void> {
    for (const [name, store] of this.#parts.people) {
      const erased = await store.erase(tenantId, endUserId, signal)
      if (erased > 0) data[name] = (data[name] ?? 0) + erased
    }
  }
  async #clear(
    tenantId: string,
    id: string,
    endUser: string,
    total: { -readonly [Kind in Exclude<keyof Erased, 'pending' | 'data'>]: number },
    signal: AbortSignal,
  ): Promise<void> {
    while (!signal.aborted) {
      const done = await this.#parts.batches.once(tenantId, (tx) =>
        clearConversations(tx, [id], runsAtOnce, { endUser }),
      )
      if (done.busy) return
      total.messages += done.messages
      total.runs += done.runs
      total.sessions += done.sessions.length
      await this.#tellRunners(tenantId, done.sessions)
      if (done.publicRuns === runsAtOnce) continue
      total.conversations++
      return
    }
  }
  /**
   * Tells runners to delete their copies of sessions. An unreachable runner keeps its copy until it needs the room or restarts; no run can start in
   * the session again.
   */
  async #tellRunners(tenantId: string, sessions: readonly LeftSession[]): Promise<void> {
    const { fleet, log } = this.#parts
    for (const { id, runner } of sessions) {
      await fleet
        ?.owner(id, runner ?? undefined)
        ?.deleteSession(tenantId, id)
        .catch((err: unknown) =>
          log.warn({ err, sessionId: id }, 'a runner could not be told that a session is erased'),
        )
    }
  }
  /** Deletes webhook messages whose body names the end user. */
  async #untell(tenantId: string, endUserId: string): Promise<void> {
    const drop = {
      text: `DELETE FROM webhook_deliveries WHERE tenant_id = $1 AND body IS NOT NULL AND body::json #>> '{data,endUserId}' = $2`,
      values: [tenantId, endUserId],
    }
    await this.#parts.database.batch(tenantId, [drop])
  }
  async #forget(tenantId: string, endUserId: string): Promise<void> {
    const drop = {
      text: 'DELETE FROM end_user_erasures WHERE tenant_id = $1 AND end_user_id = $2',
      values: [tenantId, endUserId],
    }
    await this.#parts.database.batch(tenantId, [drop])
  }
  /**
   * Deletes what the end user's runs have spent of budgets, since it names the end user. True: a run under way still holds a part of a budget, which
   * is counted until the run ends.
   */
  async #unspend(tenantId: string, endUserId: string): Promise<boolean> {
    const theirs = `billing_budgets b WHERE u.tenant_id = $1 AND b.tenant_id = $1 AND b.id = u.budget_id AND b.scope = 'end_user' AND u.subject = $2`
    const values = [tenantId, endUserId]
    const [, held] = await this.#parts.database.batch(tenantId, [
      { text: `DELETE FROM billing_budget_uses u USING ${theirs} AND u.held = 0`, values },
      { text: `SELECT 1 FROM billing_budget_uses u, ${theirs} LIMIT 1`, values },
    ])
    return held!.length > 0
  }
}
