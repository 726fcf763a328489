import type { FastifyBaseLogger } from 'fastify'
import { linesOf } from '#kernel'
import type { Database, TenantTx } from '#contracts/database'
import { endings } from '#contracts/endings'
import type { Prices } from '#contracts/prices'
import { createEventEncoder, parseLine, peekType } from '#contracts/run-event'
import type { Adopter, EndReason, FinishRun, Orphan } from '#contracts/run-store'
import type { TerminalRunStatus } from '#contracts/runs'
import { restoredFromLog } from '#contracts/profiles'
import { tenantIds } from '#kit'
import { RunUsage } from '../usage.ts'
import type { Charges } from './charges.ts'
import { type EndedRow, finishStatement, handedOver, type OnWanted } from './ends.ts'
import type { Instance } from './instance.ts'
import {
  type ChunkRow,
  claimOf,
  durableColumns,
  prepared,
  type Taken,
  type TaskRow,
  toDurable,
  toTask,
} from './rows.ts'

export const taking = (which: string): string => `
  taken AS (
    UPDATE runs SET claim_epoch = claim_epoch + 1, claim_owner = :self
    WHERE tenant_id = :tenant AND ${which} AND status = 'running'
    RETURNING id, session_id, claim_epoch, attempt, prompt, metadata, input, parent, public_run, started_at, waited_ms
  ), session AS (
    UPDATE sessions s SET claim_epoch = taken.claim_epoch, claim_owner = :self
    FROM taken WHERE s.tenant_id = :tenant AND s.id = taken.session_id AND s.claim_run = taken.id
  )`
export const asTaken = `
  SELECT id, session_id, claim_epoch::int AS epoch, public_run,
    (SELECT s.runtime FROM sessions s WHERE s.tenant_id = :tenant AND s.id = taken.session_id) AS runtime
  FROM taken`

export const asOrphans = `
  SELECT t.id AS run_id, t.claim_epoch::int AS run_epoch, t.attempt, t.prompt, t.metadata, t.input, t.parent, t.public_run,
    extract(epoch FROM clock_timestamp() - t.started_at) * 1000 - coalesce(t.waited_ms, 0) AS elapsed, s.*
  FROM taken t JOIN LATERAL (
    SELECT ${durableColumns} FROM sessions WHERE tenant_id = :tenant AND id = t.session_id
  ) s ON true`

const takeOne = prepared('run-take-one', `WITH ${taking('id = :run')} ${asTaken}`)
const takeQueued = prepared(
  'run-take-queued',
  `WITH gone AS (
     DELETE FROM run_queue WHERE tenant_id = :tenant AND run_id = :run
       AND session_id = (SELECT session_id FROM runs WHERE tenant_id = :tenant AND id = :run)
     RETURNING run_id, session_id)
   SELECT gone.run_id AS id, gone.session_id, 0 AS epoch, r.public_run
   FROM gone JOIN runs r ON r.tenant_id = :tenant AND r.id = gone.run_id`,
)

/** How many runs one transaction of a sweep ends. It holds their locks and their events in the meantime. */
const sweepSize = 200
// The time bound keeps a sweep from reading every run that the dead owner ever had: no run is older than the longest timeout, a day, except those
// that waited for people. SKIP LOCKED lets several conductors sweep at once, each taking what no other has.
const ofOwner = `tenant_id = :tenant AND claim_owner = :owner AND status = 'running'
  AND (started_at > now() - interval '25 hours' OR waited_ms IS NOT NULL)`
const goesOn = `(:owner = '${handedOver}' OR coalesce(
  (SELECT s.profile_snapshot ->> 'onCrash' FROM sessions s WHERE s.tenant_id = :tenant AND s.id = runs.session_id), :onCrash
) <> 'interrupt')`
const takeOrphans = prepared(
  'run-take-orphans',
  `WITH ${taking(`id IN (
     SELECT id FROM runs WHERE ${ofOwner} AND NOT ${goesOn} LIMIT ${sweepSize} FOR UPDATE SKIP LOCKED)`)} ${asTaken}`,
)
// A CTE picks the runs: in a sub-select PostgreSQL may apply the limit again for each row.
const takeToGoOn = prepared(
  'run-take-to-go-on',
  `WITH picked AS MATERIALIZED (
     SELECT id FROM runs WHERE ${ofOwner} AND ${goesOn} ORDER BY started_at LIMIT :room FOR UPDATE SKIP LOCKED
   ), ${taking('id IN (SELECT id FROM picked)')}
   ${asOrphans}`,
)

export interface OrphanRow extends TaskRow {
  /** The epoch as raised by the new owner. The columns of the session are those from before. */
  readonly run_epoch: number
  readonly attempt: number
  readonly elapsed: number | string
  readonly public_run: string | null
}

const takenOf = ({ run_id: id, id: session_id, run_epoch: epoch, public_run, profile }: OrphanRow): Taken => ({
  id,
  session_id,
  epoch,
  public_run,
  runtime: profile.runtime,
})
export const toOrphan = (tenantId: string, row: OrphanRow, owner: string): Orphan => ({
  claim: claimOf(tenantId, takenOf(row)),
  session: { ...toDurable(row), epoch: row.run_epoch },
  attempt: row.attempt,
  handedOver: owner === handedOver,
  elapsedMs: Math.round(Number(row.elapsed)),
  task: toTask(row),
})

// Sweep conductors only: gateways of an earlier release have rows too, and sweep themselves.
const overdue = 'NOT dead AND lease_until < now()'
const markDead = prepared(
  'instance-mark-dead',
  `UPDATE instances SET dead = true WHERE kind = 'conductor' AND ${overdue}`,
)({})
const markOneDead = prepared('instance-mark-one-dead', `UPDATE instances SET dead = true WHERE id = :id AND ${overdue}`)
const isAlive = prepared('instance-is-alive', 'SELECT 1 FROM instances WHERE id = :id AND NOT dead')
// A start that read `NOT dead` just before the mark may commit after the first sweep, so every dead process is swept twice.
const listDead = {
  name: 'instance-list-dead',
  text: `SELECT id, lease_until < now() - interval '1 minute' AS settled FROM instances WHERE kind = 'conductor' AND dead`,
}
const forget = { name: 'instance-forget', text: `DELETE FROM instances WHERE id = ANY($1)` }

const interrupted: EndReason = { code: 'interrupted', message: endings.interrupted.message }

export interface OrphanDeps {
  readonly db: Database
  readonly parkAgain: (tenantId: string, owner: string, runId?: string) => Promise<string[]>
  readonly instance: Instance
  readonly onWanted: OnWanted
  readonly charges: Charges
  readonly log: FastifyBaseLogger
}

/** Takes over the runs of processes that died, and the runs that were handed over. */
export class Orphans {
  readonly #deps: OrphanDeps
  readonly #sweptOnce = new Set<string>()
  #adopter: Adopter | undefined
  #round = 0
  #sweeping: Promise<number> | undefined

  constructor(deps: OrphanDeps) {
    this.#deps = deps
  }

  giveTo(to: Adopter): void {
    this.#adopter = to
  }

  sweep(): Promise<number> {
    return (this.#sweeping ??= this.#sweepAll().finally(() => {
      this.#sweeping = undefined
    }))
  }

  /** Takes over the handed-over runs of one tenant at once. */
  async takeOver(tenantId: string): Promise<void> {
    await this.#adopt([tenantId], [handedOver])
  }

  /** Ends the runs of one tenant whose owner is dead. Does nothing when the owner is alive. */
  async endOf(tenantId: string, owner: string): Promise<number> {
    const values = { id: owner }
    const [, alive] = await this.#deps.db.systemBatch<[object[], object[]]>([markOneDead(values), isAlive(values)])
    return alive.length > 0 ? 0 : this.#endThose(tenantId, owner)
  }

  /** Takes one run from its claim holder, or from its queue, and ends it. */
  async steal(tenantId: string, runId: string, status: TerminalRunStatus, reason: EndReason): Promise<boolean> {
    const { db, instance, charges } = this.#deps
    // One transaction, so that after a failure the owner still has its claim.
    const { taken, wanted } = await db.tenant(tenantId, async (tx) => {
      const values = { tenant: tenantId, run: runId, self: instance.id }
      // Look at the queue first: a run moves from its queue to an owner and never back.
      const queued = await tx.query<Taken>(takeQueued(values))
      const run = queued.length > 0 ? queued : await tx.query<Taken>(takeOne(values))
      return { taken: run.length > 0, wanted: await endTaken(tx, run, status, reason, charges) }
    })
    this.#tellWanted(tenantId, wanted)
    return taken
  }

  async #sweepAll(): Promise<number> {
    const { db, log } = this.#deps
    const [, dead] = await db.systemBatch<[object[], { id: string; settled: boolean }[]]>([markDead, listDead])
    const due = dead.filter((row) => row.settled || !this.#sweptOnce.has(row.id))
    // A stopping process notifies all others at once. A sweep makes up for a lost notification while the row of the process exists.
    if (due.length === 0 && dead.length === 0) return 0
    const tenants = await Array.fromAsync(tenantIds(db, 'stored'))
    let total = 0
    for (const tenant of tenants) for (const { id } of due) total += await this.#endThose(tenant, id)
    if (total > 0) log.warn({ runs: total, owners: due.length }, 'runs of dead processes were interrupted')
    const left = await this.#adopt(tenants, [handedOver, ...due.map(({ id }) => id)])
    const swept = due.filter(({ id }) => !left.has(id))
    for (const { id } of swept) this.#sweptOnce.add(id)
    const settled = swept.filter((row) => row.settled).map((row) => row.id)
    if (settled.length > 0) await db.systemBatch([{ ...forget, values: [settled] }])
    for (const id of settled) this.#sweptOnce.delete(id)
    return total
  }

  /** Resumes the runs that their owner took after people's decisions but never began. True: there were some. */
  async goOn(tenantId: string, owner: string, runId?: string): Promise<boolean> {
    const ids = await this.#deps.parkAgain(tenantId, owner, runId)
    for (const id of ids) this.#adopter?.resume(tenantId, id)
    return ids.length > 0
  }

  async #endThose(tenantId: string, owner: string): Promise<number> {
    const { db, instance, charges } = this.#deps
    await this.goOn(tenantId, owner)
    for (let total = 0; ;) {
      const { ended, wanted } = await db.tenant(tenantId, async (tx) => {
        const onCrash = this.#adopter?.onCrash ?? 'interrupt'
        const taken = await tx.query<Taken>(takeOrphans({ tenant: tenantId, owner, self: instance.id, onCrash }))
        return { ended: taken.length, wanted: await endTaken(tx, taken, 'interrupted', interrupted, charges) }
      })
      this.#tellWanted(tenantId, wanted)
      total += ended
      if (ended < sweepSize) return total
    }
  }

  /** Adopts as many as there is room for. Resolves to the owners that may have left more. */
  async #adopt(tenants: readonly string[], owners: readonly string[]): Promise<Set<string>> {
    const left = new Set<string>()
    const adopter = this.#adopter
    if (!adopter) return left
    let room = adopter.room()
    // Each sweep starts with another tenant, so that one tenant's many orphans do not delay those of other tenants.
    const first = this.#round++ % Math.max(tenants.length, 1)
    for (const tenant of [...tenants.slice(first), ...tenants.slice(0, first)]) {
      for (const owner of owners) {
        const taken = room > 0 ? await this.#adoptThose(tenant, owner, room, adopter) : 0
        if (taken >= room) left.add(owner)
        room -= taken
      }
    }
    return left
  }

  /** Takes over the runs of one owner that may continue, and ends those that may not. Resolves to how many it took over. */
  async #adoptThose(tenantId: string, owner: string, room: number, to: Adopter): Promise<number> {
    const { db, instance, charges } = this.#deps
    const { going, ended, wanted } = await db.tenant(tenantId, async (tx) => {
      const values = { tenant: tenantId, owner, self: instance.id, onCrash: to.onCrash, room }
      const rows = await tx.query<OrphanRow>(takeToGoOn(values))
      const orphans = rows.map((row) => toOrphan(tenantId, row, owner))
      const mine: Orphan[] = []
      const free: string[] = []
      for (const [i, orphan] of orphans.entries()) {
        const answer = to.wants(orphan)
        if (answer === true) mine.push(orphan)
        else free.push(...(await endTaken(tx, [takenOf(rows[i]!)], 'interrupted', answer, charges)))
      }
      return { going: mine, ended: orphans.length - mine.length, wanted: free }
    })
    for (const orphan of going) to.adopt(orphan)
    this.#tellWanted(tenantId, wanted)
    return going.length + ended
  }

  #tellWanted(tenantId: string, sessionIds: readonly string[]): void {
    for (const sessionId of sessionIds) this.#deps.onWanted(tenantId, sessionId)
  }
}

const nextSeqs = prepared(
  'run-next-seqs',
  `SELECT run_id, max(first_seq + count) AS next FROM run_events
   WHERE tenant_id = :tenant AND run_id = ANY(:runs) GROUP BY run_id`,
)

/** Ends taken runs, each with one terminal event after its last stored event. Resolves to the sessions that are now free while runs wait for them. */
export async function endTaken(
  tx: TenantTx,
  taken: readonly Taken[],
  status: TerminalRunStatus,
  reason: EndReason,
  charges: Charges,
): Promise<string[]> {
  if (taken.length === 0) return []
  const { tenantId } = tx
  const wanted: string[] = []
  const among = nextSeqs({ tenant: tenantId, runs: taken.map((run) => run.id) })
  const seqs = await tx.query<{ run_id: string; next: number }>(among)
  const next = new Map(seqs.map((row) => [row.run_id, row.next]))
  for (const run of taken) {
    const firstSeq = next.get(run.id) ?? 1
    // A run that was never started has no usage.
    const used = next.has(run.id) ? await tallyOf(tx, run.id, charges.prices) : {}
    const line = createEventEncoder(run.id, run.session_id, firstSeq).line({ type: 'error', ...reason })
    const end: FinishRun = {
      claim: claimOf(tenantId, run),
      status,
      sessionStatus: 'idle',
      error: reason,
      keepInput: run.runtime !== undefined && restoredFromLog(run.runtime),
      ...used,
      tail: { firstSeq, count: 1, lines: Buffer.from(line) },
    }
    const [row] = await tx.query<EndedRow>(finishStatement(end, charges))
    if (row?.waiting) wanted.push(run.session_id)
  }
  return wanted
}

// Only chunks with such an event leave the database, because the text of a run counts towards no meter. The last chunk shows how long the run was
// active.
const telling = prepared(
  'run-telling-chunks',
  `SELECT first_seq, lines FROM run_events
   WHERE tenant_id = :tenant AND run_id = :run
     AND (position('{"type":"usage"'::bytea IN lines) > 0 OR position('{"type":"tool_call"'::bytea IN lines) > 0
       OR position('"stage":"unsaid_tool_calls"'::bytea IN lines) > 0 OR position('"stage":"runner_accepted"'::bytea IN lines) > 0 OR position('"stage":"sandbox"'::bytea IN lines) > 0
       OR first_seq = (SELECT max(first_seq) FROM run_events WHERE tenant_id = :tenant AND run_id = :run))
   ORDER BY first_seq`,
)

/** The usage of a run, read from its stored log because its executor is gone. */
async function tallyOf(
  tx: TenantTx,
  runId: string,
  prices: Prices | undefined,
): Promise<Pick<FinishRun, 'usage' | 'toolCalls' | 'sandbox'>> {
  const usage = new RunUsage(prices)
  let first: Buffer | undefined
  let last: Buffer | undefined
  const rows = await tx.query<Omit<ChunkRow, 'count'>>(telling({ tenant: tx.tenantId, run: runId }))
  for (const { first_seq: firstSeq, lines } of rows) {
    let seq = firstSeq
    for (const line of linesOf(lines)) {
      first ??= line
      last = line
      usage.read(peekType(line), line, seq++)
    }
  }
  const { calls, toolCalls, sandbox } = usage
  return {
    toolCalls,
    ...(calls ? { usage: calls } : {}),
    ...(sandbox ? { sandbox: { ...sandbox, runSeconds: secondsBetween(first!, last!) } } : {}),
  }
}

/** The time after the last event is not charged: a sweep may come long after the run was cut off, and the sandbox was idle meanwhile. */
function secondsBetween(first: Buffer, last: Buffer): number {
  const [from, to] = [first, last].map((line) => Date.parse(String(parseLine(line)?.['at'])))
  return Math.max(0, Math.round((to! - from!) / 1_000)) || 0
}
