import { setTimeout as sleep } from 'node:timers/promises'
import { notFound } from '#kernel'
import { endUserOf } from '#contracts/apps'
import type { AuditTrail } from '#contracts/audit'
import type { Database, Statement, TenantTx } from '#contracts/database'
import type { EndUserStore, TenantDataStore } from '#contracts/retention'
import { inTime } from './batches.ts'
import { clearConversations, clearRuns, closeIdle, nextRuns } from './conversations.ts'
import { sweepData } from './data.ts'
import { dropLogs } from './logs.ts'
import {
  type Asked,
  askedFor,
  askFor,
  beginWaiting,
  forget,
  lostSessions,
  person,
  sessionsOf,
  tally,
  untoldOf,
} from './requests.ts'
import { Away, leaveApart, type Runners } from './runners.ts'
import { traces } from './traces.ts'

/** SQL: the run `r` belongs to a conversation by which its end user is found anyway. */
const inConversation =
  'EXISTS (SELECT FROM public_runs c WHERE c.tenant_id = $1 AND c.id = r.public_run AND c.end_user_id = $2)'
/** SQL: the runs of an end user that belong to no conversation of theirs, in the order of ids, after a given one. Each is looked up by its key. */
export const runsAlone = `run_people p CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = $1 AND id = p.run_id OFFSET 0) r
  WHERE p.tenant_id = $1 AND p.person = ${person} AND p.run_id > $3 AND NOT ${inConversation}`

/** Rows of one page, and how many bytes of metadata are read with them. */
const enteredAtOnce = 500
const mostBytes = 4 * 1024 * 1024

// Runs of the release before this one name nobody in their column. It may have gone on beside this one for a day. The newest minute is left out: its
// transactions may not all be over.
const edgeOf = {
  name: 'retention-people-edge',
  text: `SELECT coalesce(e.started_at, '-infinity')::text AS at, coalesce(e.run_id, '') AS id, coalesce(e.started_at = 'infinity', false) AS done,
           least(m.applied_at + interval '1 day', now() - interval '1 minute')::text AS until,
           m.applied_at + interval '1 day' <= now() - interval '1 minute' AS closed
         FROM schema_migrations m LEFT JOIN run_people_entered e ON e.tenant_id = $1 WHERE m.number = 103`,
}
// What clients write as JSON is stored as it is, so its text is looked at before it is parsed. Large values are passed by until they are among the
// first of a page, by their stored size, which is known without reading them.
const named = `n.end_user_id IS NULL AND position('"end_user_id":' IN n.metadata::text) > 0`
const unnamed = {
  name: 'retention-people-page',
  text: `WITH seen AS MATERIALIZED (
           SELECT r.*, sum(pg_column_size(r.metadata)) OVER line AS stored, row_number() OVER line AS nth FROM (
             SELECT id, started_at, end_user_id, metadata FROM runs
             WHERE tenant_id = $1 AND started_at < $2::timestamptz AND (started_at, id) > ($3::timestamptz, $4::text)
             ORDER BY started_at, id LIMIT ${enteredAtOnce}) r
           WINDOW line AS (ORDER BY r.started_at, r.id)
         ), near AS MATERIALIZED (
           SELECT n.id, n.started_at, n.nth, CASE WHEN ${named} THEN n.metadata END AS metadata FROM seen n
           WHERE n.nth = 1 OR coalesce(n.stored, 0) <= ${mostBytes}
         ), sized AS (
           SELECT *, sum(octet_length(metadata::text)) OVER (ORDER BY nth) AS bytes FROM near
         )
         SELECT id, started_at::text AS at, metadata, (SELECT count(*)::int FROM seen) AS seen FROM sized
         WHERE nth = 1 OR coalesce(bytes, 0) <= ${mostBytes} ORDER BY nth`,
}
const enter = {
  text: `INSERT INTO run_people (tenant_id, person, run_id)
         SELECT $1, sha256(convert_to(found.who, 'UTF8')), found.id FROM unnest($2::text[], $3::text[]) AS found (id, who)
         ON CONFLICT DO NOTHING`,
}
const advance = {
  text: `INSERT INTO run_people_entered (tenant_id, started_at, run_id) VALUES ($1, $2::timestamptz, $3)
         ON CONFLICT (tenant_id) DO UPDATE SET started_at = excluded.started_at, run_id = excluded.run_id`,
}

interface Edge {
  readonly at: string
  readonly id: string
  readonly done: boolean
  readonly until: string
  readonly closed: boolean
}
interface Unnamed {
  readonly id: string
  readonly at: string
  readonly metadata: Readonly<Record<string, unknown>> | null
  /** How many runs the page found, of which those with too much metadata are left to the next one. */
  readonly seen: number
}

/** Enters one page of old runs. True: more are left. */
async function enterSome(tx: TenantTx): Promise<boolean> {
  const { tenantId } = tx
  const [edge] = await tx.query<Edge>({ ...edgeOf, values: [tenantId] })
  if (!edge || edge.done) return false
  const rows = await tx.query<Unnamed>({ ...unnamed, values: [tenantId, edge.until, edge.at, edge.id] })
  const found = rows.flatMap(({ id, metadata }) => {
    const who = endUserOf(metadata ?? undefined)
    return who === undefined ? [] : [{ id, who: who.replaceAll('\0', '\uFFFD') }]
  })
  if (found.length > 0)
    await tx.query({ ...enter, values: [tenantId, found.map(({ id }) => id), found.map(({ who }) => who)] })
  const last = rows.at(-1)
  const more = last !== undefined && (last.seen === enteredAtOnce || rows.length < last.seen)
  if (edge.closed && !more) await tx.query({ ...advance, values: [tenantId, 'infinity', ''] })
  else if (last) await tx.query({ ...advance, values: [tenantId, last.at, last.id] })
  return more
}

/** Conversations per read, and public runs that are deleted in one transaction. */
const conversationsAtOnce = 20
const runsAtOnce = 25
/** Distinguishes the counts of plugins' data from the others. */
const dataPrefix = 'data.'

/** What an erasure has deleted since it was asked for, and what is left. */
interface Erased {
  readonly conversations: number
  readonly messages: number
  readonly runs: number
  readonly sessions: number
  /** Deleted data of plugins, by the plugins' names for it. */
  readonly data: Readonly<Record<string, number>>
  /** Sessions of which a runner may have a copy, since it does not answer. After a day they are not pending any more. */
  readonly untoldSessions?: number
  /**
   * Conversations, and runs outside of them, with something under way, or for which there was no time; and sessions whose runner does not answer. They
   * are erased when that is over.
   */
  readonly pending: number
}

interface EndUsersParts extends Omit<Runners, 'away'> {
  readonly database: Database
  /** Pause between two transactions that only read. */
  readonly pauseMs: number
  readonly trail: AuditTrail
  /** Data about people that plugins keep besides the conversations. */
  readonly people: ReadonlyMap<string, EndUserStore>
  /** Data for runs that plugins keep outside the database. */
  readonly data: ReadonlyMap<string, TenantDataStore>
}

/** End users, whom tenants name in their chats and runs. Finds them, and erases them with all that they said and were answered. */
export class EndUsers {
  readonly #parts: EndUsersParts

  constructor(parts: EndUsersParts) {
    this.#parts = parts
  }

  /** The conversations of an end user in the order of ids, after `after`. */
  conversations(tenantId: string, endUserId: string, after: string, limit: number): Promise<string[]> {
    return this.#ids(tenantId, {
      name: 'end-user-conversations',
      text: `SELECT DISTINCT conversation_id AS id FROM public_runs
             WHERE tenant_id = $1 AND end_user_id = $2 AND conversation_id > $3 ORDER BY 1 LIMIT $4`,
      values: [tenantId, endUserId, after, limit],
    })
  }
  /**
   * The end user's runs that belong to no conversation, in the order of ids, after `after`. Without those that one of these delegated: each is asked
   * for by itself, which finds its parent by key; joined, all runs of the end user were read for each.
   */
  runs(tenantId: string, endUserId: string, after: string, limit: number): Promise<string[]> {
    return this.#ids(tenantId, {
      name: 'end-user-runs',
      text: `SELECT r.id FROM ${runsAlone} AND (
               SELECT o.run_id FROM run_people o
               CROSS JOIN LATERAL (SELECT 1 FROM runs WHERE tenant_id = $1 AND id = o.run_id OFFSET 0) x
               WHERE o.tenant_id = $1 AND o.run_id = r.parent ->> 'runId' AND o.person = p.person LIMIT 1) IS NULL
             ORDER BY p.run_id LIMIT $4`,
      values: [tenantId, endUserId, after, limit],
    })
  }
  /**
   * Enters the runs that were started before runs named their end users. Resolves to true when none is left, and to false when the signal aborted.
   * Goes on where it stopped.
   */
  async enter(tenantId: string, signal: AbortSignal): Promise<boolean> {
    const { database, pauseMs } = this.#parts
    const reads = database.as('reads')
    while (!signal.aborted) {
      if (!(await reads.tenant(tenantId, enterSome))) return true
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
    }
    return false
  }
  /** True when something is stored of an end user, of runs only if they are entered. */
  async isKnown(tenantId: string, endUserId: string): Promise<boolean> {
    for (const store of this.#parts.people.values()) {
      for await (const items of store.items(tenantId, endUserId)) if (items.length > 0) return true
    }
    const known = {
      name: 'end-user-known',
      text: `SELECT 1 FROM public_runs WHERE tenant_id = $1 AND end_user_id = $2
             UNION ALL SELECT 1 FROM run_people WHERE tenant_id = $1 AND person = ${person} LIMIT 1`,
      values: [tenantId, endUserId],
    }
    return (await this.#finds(tenantId, known)) || this.#finds(tenantId, traces.known(tenantId, endUserId))
  }
  /** Records and begins the erasure of an end user. Rejects with 404 when the tenant has no data of this end user, and with 409 under a legal hold. */
  async request(tenantId: string, endUserId: string, signal: AbortSignal): Promise<Erased> {
    const { batches } = this.#parts
    // When there was no time to enter all runs, nobody knows yet. The next pass does.
    const known =
      (await this.#finds(tenantId, askedFor(tenantId, endUserId))) ||
      !(await this.enter(tenantId, signal)) ||
      (await this.isKnown(tenantId, endUserId))
    await batches.once(tenantId, async (tx) => {
      if (!known) throw notFound()
      await askFor(tx, endUserId)
    })
    const erased = await this.erase(tenantId, endUserId, signal)
    if (erased.pending === 0) await batches.once(tenantId, (tx) => forget(tx, endUserId))
    return erased
  }
  /** The end users whose erasure has not ended. */
  asked(tenantId: string): Promise<string[]> {
    const text = 'SELECT end_user_id AS id FROM end_user_erasures WHERE tenant_id = $1'
    return this.#ids(tenantId, { text, values: [tenantId] })
  }
  /** Tells runners of the sessions whose erasure was taken for done too early. */
  async leaveLost(tenantId: string, signal: AbortSignal, away: Away): Promise<void> {
    await leaveApart({ ...this.#parts, away }, tenantId, lostSessions, signal)
  }
  /** Continues an unfinished erasure, and records its end in the audit log. */
  async resume(tenantId: string, endUserId: string, signal: AbortSignal, away: Away): Promise<void> {
    const { batches, trail } = this.#parts
    const erased = await this.erase(tenantId, endUserId, signal, away)
    if (erased.pending > 0) return
    const actor = { keyId: 'retention', role: 'operator' }
    const entry = await trail.begin({ tenantId, actor, action: 'end-users.erased', target: endUserId })
    await trail.end(entry, { status: 200, detail: { ...erased } })
    // The counts are not forgotten before they are in the log.
    await batches.once(tenantId, (tx) => forget(tx, endUserId))
  }
  /** Erases an end user. Stops between two transactions when the signal aborts; `pending` then counts what is left. */
  async erase(tenantId: string, endUserId: string, signal: AbortSignal, away = new Away()): Promise<Erased> {
    const { batches, data } = this.#parts
    const entered = await this.enter(tenantId, signal)
    // Plugin data goes first, because some of it is only known through the chats. What arrives meanwhile is erased once more after them.
    await this.#eraseData(tenantId, endUserId, signal)
    let ids: string[] = []
    for (let after = ''; !signal.aborted; after = ids.at(-1)!) {
      ids = await this.conversations(tenantId, endUserId, after, conversationsAtOnce)
      if (ids.length === 0) break
      const page = ids
      const closed = await batches.once(tenantId, (tx) => closeIdle(tx, page, { endUser: endUserId }))
      for (const id of closed) await this.#clear(tenantId, id, endUserId, signal)
    }
    await this.#clearRuns(tenantId, endUserId, signal)
    await this.#eraseData(tenantId, endUserId, signal)
    await batches.once(tenantId, (tx) => tx.query(traces.dropMessages(tenantId, endUserId)))
    await inTime(signal, () => this.#leave(tenantId, endUserId, signal, away))
    // The objects of erased runs are deleted before the end of the erasure is recorded.
    await inTime(signal, () => sweepData(batches, data, tenantId, signal))
    return this.#outcome(tenantId, endUserId, !entered || signal.aborted)
  }

  async #ids(
    tenantId: string,
    list: { readonly name?: string; readonly text: string; readonly values: readonly unknown[] },
  ): Promise<string[]> {
    const [rows] = await this.#parts.database.as('reads').batch<[{ id: string }[]]>(tenantId, [list])
    return rows.map(({ id }) => id)
  }
  async #finds(tenantId: string, look: Statement): Promise<boolean> {
    const [rows] = await this.#parts.database.as('reads').batch<[object[]]>(tenantId, [look])
    return rows.length > 0
  }
  /** Erases the data of plugins. */
  async #eraseData(tenantId: string, endUserId: string, signal: AbortSignal): Promise<void> {
    for (const [name, store] of this.#parts.people) {
      const erased = await store.erase(tenantId, endUserId, signal)
      if (erased === 0) continue
      // Counted also under a legal hold that was set meanwhile: it is gone.
      await this.#parts.database
        .as('reads')
        .tenant(tenantId, (tx) => tally(tx, endUserId, { [dataPrefix + name]: erased }))
    }
  }
  async #clear(tenantId: string, id: string, endUser: string, signal: AbortSignal): Promise<void> {
    const { batches } = this.#parts
    const next = (tx: TenantTx): Promise<string[]> => nextRuns(tx, id, runsAtOnce, endUser)
    for (let more = true; more;) {
      await inTime(signal, () => dropLogs(batches, tenantId, next, signal))
      if (signal.aborted) return
      more = await batches.once(tenantId, async (tx) => {
        const { busy, publicRuns, messages, runs } = await clearConversations(tx, [id], runsAtOnce, { endUser })
        const isLast = !busy && publicRuns < runsAtOnce
        await tally(tx, endUser, { conversations: isLast ? 1 : 0, messages, runs })
        return !busy && !isLast
      })
    }
  }
  /** Deletes the runs that belong to no conversation. Those under way, and those in a session that is in use, stay. */
  async #clearRuns(tenantId: string, endUserId: string, signal: AbortSignal): Promise<void> {
    const { batches } = this.#parts
    let ids: string[] = []
    for (let after = ''; !signal.aborted; after = ids.at(-1)!) {
      ids = await this.runs(tenantId, endUserId, after, runsAtOnce)
      if (ids.length === 0) return
      const page = ids
      await inTime(signal, () => dropLogs(batches, tenantId, async () => page, signal))
      if (signal.aborted) return
      await batches.once(tenantId, async (tx) => tally(tx, endUserId, { runs: await clearRuns(tx, page, endUserId) }))
    }
  }
  /** Tells runners of the sessions, and deletes these. */
  async #leave(tenantId: string, endUserId: string, signal: AbortSignal, away: Away): Promise<void> {
    const { database } = this.#parts
    const [[asked]] = await database.batch<[Asked[]]>(tenantId, [askedFor(tenantId, endUserId)])
    const late = asked?.late ?? false
    const untold = await leaveApart({ ...this.#parts, away }, tenantId, sessionsOf(endUserId, late), signal)
    if (untold > 0 && !late) await database.batch(tenantId, [beginWaiting(tenantId, endUserId)])
  }
  /** Deletes what was spent of budgets, since it names the end user, and looks what is left. */
  async #outcome(tenantId: string, endUserId: string, unknown: boolean): Promise<Erased> {
    const { database, batches } = this.#parts
    const left = await this.conversations(tenantId, endUserId, '', 1_000)
    const alone = await this.runs(tenantId, endUserId, '', 1_000)
    await batches.once(tenantId, (tx) => tx.query(traces.dropUses(tenantId, endUserId)))
    // The sessions last: whoever deletes runs notes them in the same transaction.
    const looks = [traces.heldUses(tenantId, endUserId), askedFor(tenantId, endUserId), untoldOf(tenantId, endUserId)]
    const [held, [asked], [noted]] = await database.batch<[object[], Asked[], { n: number }[]]>(tenantId, looks)
    const untold = noted!.n
    const waiting = left.length + alone.length + untold
    const { conversations = 0, messages = 0, runs = 0, sessions = 0, untoldSessions = 0, ...rest } = asked?.rows ?? {}
    const data = Object.entries(rest).map(([kind, rows]) => [kind.slice(dataPrefix.length), rows])
    return {
      conversations,
      messages,
      runs,
      sessions,
      data: Object.fromEntries(data) as Erased['data'],
      ...(untoldSessions + untold > 0 ? { untoldSessions: untoldSessions + untold } : {}),
      // An erasure that ran out of time cannot know that nothing is left, so it counts as pending.
      pending: waiting || (unknown || held.length > 0 ? 1 : 0),
    }
  }
}
