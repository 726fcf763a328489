import type { FastifyBaseLogger } from 'fastify'
import type { Database, TenantTx } from '#contracts/database'
import { createEventEncoder } from '#contracts/run-event'
import type { Prices } from '#contracts/prices'
import type { Adopter, EndReason } from '#contracts/run-store'
import type { TerminalRunStatus } from '#contracts/runs'
import { adoptOrphans } from './adoption.ts'
import { type EndedRow, finishStatement } from './claims.ts'
import { tallyOf } from './tally.ts'

const taking = (which: string): string => `
  WITH taken AS (
    UPDATE runs SET claim_epoch = claim_epoch + 1, claim_owner = $3
    WHERE tenant_id = $1 AND ${which} AND status = 'running'
    RETURNING id, session_id, claim_epoch
  ), session AS (
    UPDATE sessions s SET claim_epoch = taken.claim_epoch, claim_owner = $3
    FROM taken WHERE s.tenant_id = $1 AND s.id = taken.session_id AND s.claim_run = taken.id
  )
  SELECT id, session_id, claim_epoch::int AS epoch FROM taken`

const takeOne = { name: 'run-take-one', text: taking('id = $2') }
const takeQueued = {
  name: 'run-take-queued',
  text: `DELETE FROM run_queue WHERE tenant_id = $1 AND run_id = $2 RETURNING run_id AS id, session_id, 0 AS epoch`,
}
/** How many runs one transaction of a sweep ends: it holds their locks and their events meanwhile. */
const sweepSize = 200
// No run is older than its longest timeout, a day: the bound keeps a sweep from reading all that the dead owner ever ran.
// SKIP LOCKED: several conductors may sweep at once, and each takes what no other has.
const takeOrphans = {
  name: 'run-take-orphans',
  text: taking(`id IN (
      SELECT id FROM runs WHERE tenant_id = $1 AND claim_owner = $2 AND started_at > now() - interval '25 hours' AND status = 'running'
        AND ($4 OR (SELECT s.profile_snapshot ->> 'onCrash' FROM sessions s
                    WHERE s.tenant_id = $1 AND s.id = runs.session_id) IS DISTINCT FROM 'retry')
      LIMIT ${sweepSize} FOR UPDATE SKIP LOCKED)`),
}
const nextSeqs = {
  name: 'run-next-seqs',
  text: `SELECT run_id, max(first_seq + count) AS next FROM run_events WHERE tenant_id = $1 AND run_id = ANY($2) GROUP BY run_id`,
}

export interface Taken {
  readonly id: string
  readonly session_id: string
  readonly epoch: number
}

/**
 * Ends what was taken from its owner or its queue, each with one terminal event behind its last stored one. Resolves to the
 * sessions that are free now while runs wait for them.
 */
export async function endTaken(
  tx: TenantTx,
  taken: readonly Taken[],
  status: TerminalRunStatus,
  reason: EndReason,
  prices?: Prices,
): Promise<string[]> {
  if (taken.length === 0) return []
  const { tenantId } = tx
  const wanted: string[] = []
  const seqs = await tx.query<{ run_id: string; next: number }>({
    ...nextSeqs,
    values: [tenantId, taken.map((run) => run.id)],
  })
  const next = new Map(seqs.map((row) => [row.run_id, row.next]))
  for (const run of taken) {
    const firstSeq = next.get(run.id) ?? 1
    // What nobody began has used nothing.
    const used = next.has(run.id) ? await tallyOf(tx, run.id, prices) : {}
    const line = createEventEncoder(run.id, run.session_id, firstSeq).line({ type: 'error', ...reason })
    const [ended] = await tx.query<EndedRow>(
      finishStatement({
        claim: { tenantId, sessionId: run.session_id, runId: run.id, epoch: run.epoch },
        status,
        sessionStatus: 'idle',
        error: reason,
        ...used,
        tail: { firstSeq, count: 1, lines: Buffer.from(line) },
      }),
    )
    if (ended?.waiting) wanted.push(run.session_id)
  }
  return wanted
}

export interface OrphanDeps {
  readonly onWanted: OnWanted
  readonly prices: Prices | undefined
}

/** Told of sessions that are free while runs wait for them. */
export type OnWanted = (tenantId: string, sessionId: string) => void

/** Takes one run from whoever holds it, or from its queue, and ends it. One transaction: a failure leaves the owner in its rights. */
export async function stealRun(
  deps: OrphanDeps & { readonly db: Database; readonly thief: string },
  tenantId: string,
  runId: string,
  status: TerminalRunStatus,
  reason: EndReason,
): Promise<boolean> {
  const { taken, wanted } = await deps.db.tenant(tenantId, async (tx) => {
    // In this order: a run goes from its queue to an owner and never back.
    const queued = await tx.query<Taken>({ ...takeQueued, values: [tenantId, runId] })
    const run =
      queued.length > 0 ? queued : await tx.query<Taken>({ ...takeOne, values: [tenantId, runId, deps.thief] })
    return { taken: run.length > 0, wanted: await endTaken(tx, run, status, reason, deps.prices) }
  })
  for (const sessionId of wanted) deps.onWanted(tenantId, sessionId)
  return taken
}

const interrupted: EndReason = {
  code: 'interrupted',
  message: 'The server that executed this run went away before it ended.',
}

// Conductors only: a gateway's row dies too, and is the gateway's to sweep.
const markDead = {
  name: 'instance-mark-dead',
  text: `UPDATE instances SET dead = true WHERE kind = 'conductor' AND NOT dead AND lease_until < now()`,
}
const markOneDead = {
  name: 'instance-mark-one-dead',
  text: `UPDATE instances SET dead = true WHERE id = $1 AND NOT dead AND lease_until < now()`,
}
const isAlive = { name: 'instance-is-alive', text: `SELECT 1 FROM instances WHERE id = $1 AND NOT dead` }
// A start that read `NOT dead` an instant before the mark may commit after the first sweep: the second one finds it.
const listDead = {
  name: 'instance-list-dead',
  text: `SELECT id, lease_until < now() - interval '1 minute' AS settled FROM instances WHERE kind = 'conductor' AND dead`,
}
const forget = { name: 'instance-forget', text: `DELETE FROM instances WHERE id = ANY($1)` }
// Row security hides every run from a transaction without a tenant, so a sweep goes from tenant to tenant.
const listTenants = { name: 'tenant-ids', text: 'SELECT id FROM tenants' }

export interface Orphans {
  sweep(): Promise<number>
  handTo(adopter: Adopter): void
  /** Ends the runs of one tenant whose owner is dead; touches nothing when the owner lives. */
  endOf(tenantId: string, owner: string): Promise<number>
}

export function createOrphans(
  db: Database,
  self: () => string,
  { onWanted, prices, log }: OrphanDeps & { readonly log: FastifyBaseLogger },
): Orphans {
  const sweptOnce = new Set<string>()
  let adopter: Adopter | undefined
  let round = 0
  let sweeping: Promise<number> | undefined
  const sweepTenant = async (tenantId: string, owner: string): Promise<number> => {
    let total = 0
    for (;;) {
      const { ended, wanted } = await db.tenant(tenantId, async (tx) => {
        const values = [tenantId, owner, self(), adopter === undefined]
        const taken = await tx.query<Taken>({ ...takeOrphans, values })
        return { ended: taken.length, wanted: await endTaken(tx, taken, 'interrupted', interrupted, prices) }
      })
      for (const sessionId of wanted) onWanted(tenantId, sessionId)
      total += ended
      if (ended < sweepSize) return total
    }
  }
  /** Hands over as many as there is room for. Resolves to the owners that may have left more. */
  const adopt = async (tenants: readonly { id: string }[], due: readonly { id: string }[]): Promise<Set<string>> => {
    const left = new Set<string>()
    if (!adopter) return left
    let room = adopter.room()
    // Another tenant is the first each time: many orphans of one keep nobody else's waiting.
    const first = round++ % Math.max(tenants.length, 1)
    for (const tenant of [...tenants.slice(first), ...tenants.slice(0, first)]) {
      for (const { id: owner } of due) {
        const order = { db, tenantId: tenant.id, owner, self: self(), room, adopter, onWanted, prices }
        const taken = room > 0 ? await adoptOrphans(order) : 0
        if (taken >= room) left.add(owner)
        room -= taken
      }
    }
    return left
  }
  const sweepAll = async (): Promise<number> => {
    const [, dead] = await db.systemBatch<[object[], { id: string; settled: boolean }[]]>([markDead, listDead])
    const due = dead.filter((row) => row.settled || !sweptOnce.has(row.id))
    if (due.length === 0) return 0
    const [tenants] = await db.systemBatch<[{ id: string }[]]>([listTenants])
    let total = 0
    for (const tenant of tenants) for (const { id } of due) total += await sweepTenant(tenant.id, id)
    if (total > 0) log.warn({ runs: total, owners: due.length }, 'runs of dead processes were interrupted')
    const left = await adopt(tenants, due)
    const swept = due.filter(({ id }) => !left.has(id))
    for (const { id } of swept) sweptOnce.add(id)
    const settled = swept.filter((row) => row.settled).map((row) => row.id)
    if (settled.length > 0) await db.systemBatch([{ ...forget, values: [settled] }])
    for (const id of settled) sweptOnce.delete(id)
    return total
  }
  return {
    handTo(to) {
      adopter = to
    },
    sweep: () =>
      (sweeping ??= sweepAll().finally(() => {
        sweeping = undefined
      })),
    async endOf(tenantId, owner) {
      const [, alive] = await db.systemBatch<[object[], object[]]>([
        { ...markOneDead, values: [owner] },
        { ...isAlive, values: [owner] },
      ])
      return alive.length > 0 ? 0 : sweepTenant(tenantId, owner)
    },
  }
}
