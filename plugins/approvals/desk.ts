import { setImmediate as turn } from 'node:timers/promises'
import {
  approvalErrors,
  approvalIdOf,
  type Approvals,
  type AskedCall,
  type AskedNode,
  type CallDecision,
  type NodeDecision,
} from '#contracts/approvals'
import { type Caller, roleAtLeast } from '#contracts/auth'
import type { Database, TenantTx } from '#contracts/database'
import type { Wake, WakeUps } from '#contracts/jobs'
import { overLimit, type TenantLimits } from '#contracts/limits'
import { storable, tenantIds } from '#kit'
import type { ApprovalMetrics } from './metrics.ts'
import { type Approval, insertCall, insertNode, type Resolve, type Status } from './store.ts'

interface DeskDeps {
  readonly database: Database
  readonly limits: TenantLimits | undefined
  readonly metrics: ApprovalMetrics
}

const usualSeconds = 7 * 86_400
/** How many parked runs of a tenant one sweep wakes; the next sweep wakes the others. */
const atOnce = 500

type Resume = Parameters<Approvals['onDecided']>[0]
type Decide = Parameters<Approvals['onNodes']>[0]

interface Decided {
  readonly status: Status
  readonly comment: string | null
  readonly resolved_by: string | null
}
function decisionOf({ status, comment, resolved_by }: Decided): CallDecision | 'waiting' {
  if (status === 'waiting') return 'waiting'
  return {
    approved: status === 'approved',
    ...(comment === null ? {} : { comment }),
    ...(resolved_by === null ? {} : { by: resolved_by }),
  }
}

/** Opens approvals for calls and nodes, and takes the decisions of people. The transaction that stores a decision also wakes whoever asked. */
export class ApprovalDesk implements Approvals {
  readonly #deps: DeskDeps
  #wakeUps: WakeUps | undefined
  #resume: Resume | undefined
  #decide: Decide | undefined
  constructor(deps: DeskDeps) {
    this.#deps = deps
  }

  wakeBy(wakeUps: WakeUps): void {
    this.#wakeUps = wakeUps
  }
  onDecided(resume: Resume): void {
    this.#resume = resume
  }
  onNodes(decide: Decide): void {
    this.#decide = decide
  }

  ask(call: AskedCall): Promise<CallDecision | 'waiting'> {
    const { tenantId, runId, key, profile } = call
    const id = approvalIdOf(runId, key)
    return this.#deps.database.tenant(tenantId, async (tx) => {
      const [known] = await tx.query<Decided>({
        name: 'approval-decision',
        text: 'SELECT status, comment, resolved_by FROM approvals WHERE tenant_id = $1 AND id = $2',
        values: [tenantId, id],
      })
      if (known) return decisionOf(known)
      await this.#admit(tx)
      const seconds = profile.approvals?.expiresInSeconds ?? usualSeconds
      if (!(await insertCall(tx, id, call, seconds))) throw approvalErrors.alreadyResolved()
      await this.#send(tx, { expire: id }, `${id}/expire`, seconds * 1_000 + 50)
      this.#deps.metrics.opened('tool')
      return 'waiting'
    })
  }
  async askFor(tx: TenantTx, node: AskedNode): Promise<void> {
    await this.#admit(tx)
    await insertNode(tx, node)
    this.#deps.metrics.opened('node')
  }
  async decided(tenantId: string, runId: string): Promise<Record<string, CallDecision>> {
    const [rows] = await this.#deps.database.batch<[(Decided & { key: string })[]]>(tenantId, [
      {
        text: `SELECT call_key AS key, status, comment, resolved_by FROM approvals
               WHERE tenant_id = $1 AND run_id = $2 AND status <> 'waiting'`,
        values: [tenantId, runId],
      },
    ])
    return Object.fromEntries(rows.map(({ key, ...row }) => [key, decisionOf(row) as CallDecision]))
  }
  async left(tx: TenantTx, runId: string): Promise<void> {
    await this.#wakeIfDecided(tx, [runId])
  }

  /** Decides an approval. 403 `wrong_approver`; 409 `already_resolved` for every decision after the first, and after the approval has expired. */
  async resolve(caller: Caller, approval: Approval, { decision, comment }: Resolve): Promise<void> {
    if (!roleAtLeast(caller.role, approval.role)) {
      throw approvalErrors.wrongApprover({
        message: `Only keys of the role ${approval.role} or above may decide this approval.`,
      })
    }
    const approved = decision === 'approve'
    const decided: NodeDecision = { approved, ...(comment === undefined ? {} : { comment: storable(comment) }) }
    const { id, workflowRunId, nodeId, kind } = approval
    if (workflowRunId !== undefined && nodeId !== undefined) {
      if (!this.#decide) throw approvalErrors.alreadyResolved()
      await this.#decide(caller, { id, workflowRunId, nodeId }, decided)
    } else {
      await this.#deps.database.tenant(caller.tenantId, async (tx) => {
        const rows = await tx.query<{ run_id: string }>({
          text: `UPDATE approvals SET status = $3, comment = $4, resolved_by = $5, resolved_at = now()
                 WHERE tenant_id = $1 AND id = $2 AND status = 'waiting' AND expires_at > now() RETURNING run_id`,
          values: [caller.tenantId, id, approved ? 'approved' : 'rejected', decided.comment ?? null, caller.keyId],
        })
        if (rows.length === 0) throw approvalErrors.alreadyResolved()
        await this.#wakeIfDecided(
          tx,
          rows.map(({ run_id }) => run_id),
        )
      })
    }
    const waited = (Date.now() - Date.parse(approval.createdAt)) / 1_000
    this.#deps.metrics.resolved(kind, approved ? 'approved' : 'rejected', 'person', waited)
  }

  /** Handles one wake-up: expires an approval, or resumes a run. */
  async wake({ tenantId, runId, expire }: Wake['what']): Promise<void> {
    if (tenantId === undefined) return
    if (expire !== undefined) await this.#deps.database.tenant(tenantId, (tx) => this.#expire(tx, expire))
    else if (runId !== undefined) await this.#resume?.(tenantId, runId)
  }

  /** Handles expired approvals and decided runs whose wake-up is missing: the tables were restored from a backup, or no conductor could take the run. */
  async sweep(signal: AbortSignal): Promise<void> {
    const { database } = this.#deps
    for await (const tenantId of tenantIds(database, 'active')) {
      if (signal.aborted) return
      await database.tenant(tenantId, async (tx) => {
        await this.#expire(tx)
        const parked = await tx.query<{ id: string }>({
          // Only parked runs without a waiting approval: thousands that still wait for people would hide these.
          text: `SELECT id FROM runs r WHERE tenant_id = $1 AND claim_owner = 'parked' AND waited_ms IS NOT NULL AND NOT EXISTS (
                   SELECT FROM approvals a WHERE a.tenant_id = $1 AND a.run_id = r.id AND a.status = 'waiting') LIMIT ${atOnce}`,
          values: [tenantId],
        })
        await this.#wakeIfDecided(
          tx,
          parked.map(({ id }) => id),
        )
      })
      await turn()
    }
  }

  async countOpen(tenantId: string): Promise<number> {
    const [[row]] = await this.#deps.database.batch<[{ count: number }[]]>(tenantId, [
      { text: countWaiting, values: [tenantId] },
    ])
    return row!.count
  }

  /** Decides expired approvals of calls by their `onExpiry`: the given one, or all of the tenant. Approvals of nodes expire with their nodes. */
  async #expire(tx: TenantTx, id?: string): Promise<void> {
    const rows = await tx.query<{ run_id: string; status: 'approved' | 'rejected'; waited: string }>({
      text: `UPDATE approvals SET status = CASE on_expiry WHEN 'approve' THEN 'approved' ELSE 'rejected' END, resolved_by = 'expiry',
               resolved_at = now()
             WHERE tenant_id = $1 AND status = 'waiting' AND run_id IS NOT NULL AND expires_at <= now() AND ($2::text IS NULL OR id = $2)
             RETURNING run_id, status, extract(epoch FROM now() - created_at) AS waited`,
      values: [tx.tenantId, id ?? null],
    })
    for (const { status, waited } of rows) this.#deps.metrics.resolved('tool', status, 'expiry', Number(waited))
    await this.#wakeIfDecided(
      tx,
      rows.map(({ run_id }) => run_id),
    )
  }
  /** Wakes the runs that have no waiting approval left, in the same transaction. */
  async #wakeIfDecided(tx: TenantTx, runIds: readonly string[]): Promise<void> {
    if (runIds.length === 0) return
    const rows = await tx.query<{ id: string }>({
      text: `SELECT id FROM unnest($2::text[]) AS asked (id) WHERE NOT EXISTS (
               SELECT FROM approvals WHERE tenant_id = $1 AND run_id = asked.id AND status = 'waiting')`,
      values: [tx.tenantId, [...new Set(runIds)]],
    })
    for (const { id } of rows) await this.#send(tx, { runId: id }, `${id}/resume`)
  }
  async #admit(tx: TenantTx): Promise<void> {
    const most = this.#deps.limits?.of(tx.tenantId).openApprovals
    if (most === undefined) return
    await tx.query({ text: 'SELECT pg_advisory_xact_lock(hashtextextended($1, 62))', values: [tx.tenantId] })
    const [row] = await tx.query<{ count: number }>({ text: countWaiting, values: [tx.tenantId] })
    if (row!.count >= most) throw overLimit('openApprovals', most)
  }
  async #send(tx: TenantTx, what: Readonly<Record<string, string>>, key: string, afterMs = 0): Promise<void> {
    const { tenantId } = tx
    await this.#wakeUps?.send([{ tenantId, what: { tenantId, ...what }, key, afterMs }], tx)
  }
}

const countWaiting = `SELECT count(*)::int AS count FROM approvals WHERE tenant_id = $1 AND status = 'waiting'`
