import type { FastifyBaseLogger } from 'fastify'
import { notFound } from '#kernel'
import type { AuditTrail } from '#contracts/audit'
import type { Database } from '#contracts/database'
import type { EndUserStore, TenantDataStore } from '#contracts/retention'
import type { Fleet } from '#contracts/runner'
import type { Batches } from './batches.ts'
import { sweepData } from './data.ts'
import { clearConversations, closeIdle, type LeftSession } from './conversations.ts'

/** Conversations per read, and public runs that are deleted in one transaction. */
const conversationsAtOnce = 20
const runsAtOnce = 25

/** What an erasure has deleted so far, and what is left. */
export interface Erased {
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
