import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError, notFound } from '#kernel'
import type { Caller } from '#contracts/auth'
import type { Database, Statement, TenantTx } from '#contracts/database'
import { isId, newId } from '#contracts/ids'
import type { WakeUps } from '#contracts/jobs'
import { overLimit, type TenantLimits } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import { ahead } from '#kit'
import { type ListSql, readList } from '#kit/lists'
import { workflowErrors } from './errors.ts'
import { Firings, keptFirings, listFirings, manual, type Stand, standOf, unqueue } from './firings.ts'
import type { WorkflowMetrics } from './metrics.ts'
import type { WorkflowRunStore } from './runs.store.ts'
import type { Firing, RunStatus, Schedule, ScheduleBody } from './schema.ts'
import { checkSchedule, type Target, targetOf } from './lookups.ts'
import { isoOf, jitterOf, lastTimesOf, missedOf, nextOf, timesOf } from './times.ts'
import type { Lookups } from './validate.ts'

/** At most this many missed times are made up for. */
const mostCaughtUp = 100
/** A turn that is further away than so many milliseconds has a wake-up of its own: who waits here keeps the wake-ups of others waiting. */
const soonMs = 500

export interface SchedulesDeps {
  readonly database: Database
  readonly store: WorkflowRunStore
  readonly wakeUps: WakeUps
  readonly limits: TenantLimits | undefined
  readonly metrics: WorkflowMetrics
  lookups(tenantId: string): Lookups
}

interface Row {
  id: string
  document: string
  status: 'active' | 'paused'
  next_at: string | null
  created_by: string
  created_at: string
  updated_at: string
}
const columns = 'id, document, status, next_at, created_by, created_at, updated_at'

/** A schedule whose row a transaction holds. */
interface Held extends Stand {
  readonly row: Row
  /** By the clock of the database. */
  readonly now: Date
}

/** Schedules of tenants. Each scheduled time is handled once, by whichever process is woken for it. */
export class Schedules {
  readonly #deps: SchedulesDeps
  readonly #turnOf: ((tenantId: string) => number) | undefined
  constructor(deps: SchedulesDeps) {
    this.#deps = deps
    this.#turnOf = deps.limits?.steady(ahead.atOnce)
  }

  async create({ tenantId, keyId }: Caller, body: ScheduleBody): Promise<Schedule> {
    const { limits } = this.#deps
    limits?.stored.admit(tenantId)
    await checkSchedule(this.#deps, tenantId, body)
    const id = newId('wfsch')
    const most = limits?.of(tenantId).workflowSchedules ?? Infinity
    const document = JSON.stringify(body)
    const made = await this.#deps.database.tenant(tenantId, async (tx) => {
      await tx.query({ text: 'SELECT pg_advisory_xact_lock(hashtextextended($1, 60))', values: [tenantId] })
      const [{ count, now }] = (await tx.query<{ count: number; now: string }>({
        text: 'SELECT count(*)::int AS count, now() AS now FROM workflow_schedules WHERE tenant_id = $1',
        values: [tenantId],
      })) as [{ count: number; now: string }]
      if (count >= most) throw overLimit('workflowSchedules', most)
      const next = nextOf(body, new Date(now))
      const [row] = await tx.query<Row>({
        text: `INSERT INTO workflow_schedules (tenant_id, id, document, definition_id, status, next_at, created_by)
               VALUES ($1, $2, $3, $4, 'active', $5, $6) RETURNING ${columns}`,
        values: [tenantId, id, document, body.workflowDefinitionId ?? null, next ?? null, keyId],
      })
      await this.#wakeAt(tx, id, body, next, new Date(now))
      return toSchedule(row!)
    })
    limits?.stored.add(tenantId, document.length)
    return made
  }

  list(tenantId: string, page: Page): Promise<Listing<Schedule>> {
    const list: ListSql = {
      columns,
      shown: columns,
      // Bytes of a row in the list. A document contains the input of its schedule, which may be as large as a request.
      bytes: 'octet_length(document) + 200',
      from: 'workflow_schedules',
      where: 'tenant_id = $1',
      values: [tenantId],
      order: { created_at: 'timestamptz', id: 'text' },
      newestFirst: true,
      atOnce: 200,
    }
    return readList({ database: this.#deps.database, tenantId }, list, page, (row: Row) => toSchedule(row))
  }
  async find(tenantId: string, id: string): Promise<Schedule> {
    const { nextAt, ...schedule } = toSchedule(await this.#row(tenantId, id))
    if (schedule.status === 'paused' || nextAt === undefined) return schedule as Schedule
    return {
      ...schedule,
      nextAt,
      nextTimes: timesOf(schedule, new Date(Date.parse(nextAt) - 1), 5).map(isoOf),
    } as Schedule
  }
  async firings(tenantId: string, id: string, page: Page): Promise<Listing<Firing>> {
    await this.#row(tenantId, id)
    return listFirings(this.#deps.database, tenantId, id, page)
  }

  /** Pauses a schedule: it starts nothing by itself any more, and its queued run is skipped. */
  pause(tenantId: string, id: string): Promise<Schedule> {
    return this.#change(tenantId, id, async (tx, row) => {
      if (row.status === 'paused') return row
      tx.atEnd(unqueue([tenantId, id], { outcome: 'skipped', message: 'The schedule was paused.' }))
      return this.#put(tx, id, 'paused', undefined)
    })
  }
  /** Resumes a schedule with its next time from now. Times during the pause do not count as missed. */
  resume(tenantId: string, id: string): Promise<Schedule> {
    return this.#change(tenantId, id, async (tx, row, now) => {
      if (row.status === 'active') return row
      const body = JSON.parse(row.document) as ScheduleBody
      const next = nextOf(body, now)
      await this.#wakeAt(tx, id, body, next, now)
      return this.#put(tx, id, 'active', next)
    })
  }
  async remove(tenantId: string, id: string): Promise<void> {
    const [[gone]] = await this.#deps.database.batch<[{ document: string }[]]>(tenantId, [
      {
        text: 'DELETE FROM workflow_schedules WHERE tenant_id = $1 AND id = $2 RETURNING document',
        values: [tenantId, id],
      },
    ])
    if (!gone) throw unknownSchedule()
    this.#deps.limits?.stored.add(tenantId, -gone.document.length)
  }

  /** Starts a run now, regardless of the times of the schedule and of runs under way. */
  async runNow(tenantId: string, id: string): Promise<{ id: string; status: RunStatus }> {
    const row = await this.#row(tenantId, id)
    const target = await targetOf(this.#deps, tenantId, JSON.parse(row.document) as ScheduleBody)
    if ('failure' in target) throw workflowErrors.invalidSchedule({ message: target.failure })
    await this.#deps.store.admit(tenantId)
    return this.#deps.database.tenant(tenantId, async (tx) => {
      // The schedule may have been deleted since it was read.
      if (!(await this.#hold(tx, id))) throw unknownSchedule()
      const started = await this.#start(tx, row, target)
      for (const statement of manual([tenantId, id], started.id)) tx.atEnd(statement)
      this.#deps.metrics.fired('started')
      return started
    })
  }

  /** Handles all times of a schedule that have come, and its queued run. Called by wake-ups; `hasTurn`: by one for its turn. */
  async fire(tenantId: string, id: string, hasTurn = false): Promise<void> {
    const row = await this.#row(tenantId, id).catch((error: unknown) => {
      if (isAppError(error) && error.status === 404) return undefined
      throw error
    })
    if (!row || (!hasTurn && (await this.#later(tenantId, id)))) return
    const found = await targetOf(this.#deps, tenantId, JSON.parse(row.document) as ScheduleBody)
    const refused = await this.#deps.store.refusal(tenantId)
    const target = refused === undefined ? found : { failure: refused }
    await this.#deps.database.tenant(tenantId, async (tx) => {
      const held = await this.#hold(tx, id)
      if (!held) return
      const body = JSON.parse(held.row.document) as ScheduleBody
      const firings = new Firings(tx, id, held, {
        overlap: body.overlap,
        target,
        start: (what) => this.#start(tx, held.row, what),
        fired: (outcome) => this.#deps.metrics.fired(outcome),
      })
      await firings.startQueued()
      if (held.row.status === 'active' && held.row.next_at !== null) await this.#fireDue(tx, held, body, firings)
    })
  }

  /** Takes the turn of the tenant. True: it comes with a wake-up. */
  async #later(tenantId: string, id: string): Promise<boolean> {
    const waitMs = this.#turnOf?.(tenantId) ?? 0
    if (waitMs <= soonMs) {
      if (waitMs > 0) await sleep(waitMs, undefined, { ref: false })
      return false
    }
    const what = { tenantId, scheduleId: id, turn: 'taken' }
    await this.#deps.wakeUps.send([{ tenantId, what, key: `${id}/turn`, afterMs: waitMs }])
    return true
  }

  async count(tenantId: string): Promise<number> {
    const [[row]] = await this.#deps.database.batch<[{ count: number }[]]>(tenantId, [
      { text: 'SELECT count(*)::int AS count FROM workflow_schedules WHERE tenant_id = $1', values: [tenantId] },
    ])
    return row!.count
  }

  async #fireDue(tx: TenantTx, { row, now }: Held, body: ScheduleBody, firings: Firings): Promise<void> {
    const first = new Date(row.next_at!)
    const begin = new Date(first.getTime() - 1)
    const some = timesOf(body, begin, keptFirings, now)
    // After a long downtime only the last times are handled: the history has no room for more.
    const come = some.length < keptFirings ? some : lastTimesOf(body, begin, keptFirings, now)
    // Times fire in order: a time that is delayed by its jitter also delays the times after it.
    const early = come.findIndex((at) => at.getTime() + jitterOf(row.id, body, at) > now.getTime())
    const due = early < 0 ? come : come.slice(0, early)
    const last = due.at(-1)
    if (!last) return this.#wakeAt(tx, row.id, body, first, now)
    const missed = missedOf(row.id, body, due, now)
    const caughtUp =
      { none: [], one: missed.slice(-1), all: missed.slice(-mostCaughtUp) }[body.catchUp as 'none' | 'one' | 'all'] ??
      []
    const passed = new Set(missed).difference(new Set(caughtUp))
    for (const at of due) {
      if (passed.has(at)) firings.missed(at)
      else await firings.fireAt(at)
    }
    firings.write()
    const next = nextOf(body, last)
    tx.atEnd(put(tx.tenantId, row.id, 'active', next))
    await this.#wakeAt(tx, row.id, body, next, now)
  }
  #start(
    tx: TenantTx,
    row: Row,
    target: Exclude<Target, { failure: string }>,
  ): Promise<{ id: string; status: RunStatus }> {
    const { input } = JSON.parse(row.document) as ScheduleBody
    const run = { input: JSON.stringify(input ?? {}), start: true, createdBy: row.created_by, scheduleId: row.id }
    return this.#deps.store.createIn(tx, run, { id: target.id, version: target.version, definition: target.definition })
  }

  async #row(tenantId: string, id: string): Promise<Row> {
    const [[row]] = isId('wfsch', id)
      ? await this.#deps.database.batch<[Row[]]>(tenantId, [
          {
            name: 'workflow-schedule',
            text: `SELECT ${columns} FROM workflow_schedules WHERE tenant_id = $1 AND id = $2`,
            values: [tenantId, id],
          },
        ])
      : [[]]
    if (!row) throw unknownSchedule()
    return row
  }
  async #hold(tx: TenantTx, id: string): Promise<Held | undefined> {
    const hold = {
      name: 'workflow-schedule-hold',
      // No run may begin for a deleted tenant.
      text: `SELECT ${columns}, clock_timestamp() AS now FROM workflow_schedules WHERE tenant_id = $1 AND id = $2
               AND NOT EXISTS (SELECT FROM tenants WHERE id = $1 AND deleted_at IS NOT NULL) FOR UPDATE`,
      values: [tx.tenantId, id],
    }
    // A statement of its own, which sees what was committed while the first one waited for the row.
    const [[row], [stand]] = await tx.queries<[(Row & { now: string })[], [Stand]]>([hold, standOf(tx.tenantId, id)])
    return row && { row, now: new Date(row.now), ...stand }
  }
  async #change(
    tenantId: string,
    id: string,
    change: (tx: TenantTx, row: Row, now: Date) => Promise<Row>,
  ): Promise<Schedule> {
    return this.#deps.database.tenant(tenantId, async (tx) => {
      const held = await this.#hold(tx, id)
      if (!held) throw unknownSchedule()
      return toSchedule(await change(tx, held.row, held.now))
    })
  }
  async #put(tx: TenantTx, id: string, status: Row['status'], next: Date | undefined): Promise<Row> {
    const [row] = await tx.query<Row>(put(tx.tenantId, id, status, next))
    return row!
  }
  async #wakeAt(tx: TenantTx, id: string, body: ScheduleBody, at: Date | undefined, now: Date): Promise<void> {
    if (!at) return
    const afterMs = Math.max(0, at.getTime() + jitterOf(id, body, at) - now.getTime()) + 1
    const { tenantId } = tx
    const what = { tenantId, scheduleId: id }
    const wake = { tenantId, what, key: `${id}/${at.getTime()}`, afterMs }
    for (const statement of await this.#deps.wakeUps.statements([wake])) tx.atEnd(statement)
  }
}

const put = (tenantId: string, id: string, status: Row['status'], next: Date | undefined): Statement => ({
  name: 'workflow-schedule-put',
  text: `UPDATE workflow_schedules SET status = $3, next_at = $4, updated_at = CASE WHEN status = $3 THEN updated_at ELSE now() END
         WHERE tenant_id = $1 AND id = $2 RETURNING ${columns}`,
  values: [tenantId, id, status, next ?? null],
})

export const unknownSchedule = () => notFound({ message: 'There is no schedule of this id.' })

function toSchedule(row: Row): Schedule {
  return {
    id: row.id,
    ...(JSON.parse(row.document) as ScheduleBody),
    status: row.status,
    ...(row.next_at === null ? {} : { nextAt: row.next_at }),
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  }
}
