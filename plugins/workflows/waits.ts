import { isAppError } from '#kernel'
import type { Approvals } from '#contracts/approvals'
import type { TenantTx } from '#contracts/database'
import { type Ended, failed, type NodeRow, type NodeTable, ready, running } from './nodes.store.ts'
import type { Notices } from './notices.ts'
import { approvalOutcome, delayMs, type Failure, lostError, type Outcome, timeoutMsOf, timeUp } from './outcome.ts'

interface WaitsDeps {
  readonly tx: TenantTx
  readonly runId: string
  readonly nodes: NodeTable
  readonly notices: Notices
  readonly approvals: Approvals
}
type NewApproval = NonNullable<Extract<Outcome, { kind: 'parked' }>['approval']>

/** Handles what the nodes of a run wait for, approvals and times, in the transaction that holds the run. */
export class Waits {
  readonly #deps: WaitsDeps
  constructor(deps: WaitsDeps) {
    this.#deps = deps
  }

  /** Opens an approval. Resolves to the failure of the node when the approval cannot be opened, for example because of a limit. */
  async ask(nodeId: string, approval: NewApproval): Promise<Failure | undefined> {
    const { tx, runId, approvals } = this.#deps
    try {
      await approvals.askFor(tx, { ...approval, workflowRunId: runId, nodeId })
      return undefined
    } catch (error) {
      if (!isAppError(error) || error.status >= 500) throw error
      return { code: error.code, message: error.sentence ?? error.code }
    }
  }
  /** Closes the open approvals of these nodes. */
  async close(rows: readonly NodeRow[], status: 'approved' | 'rejected' | 'cancelled', by?: string): Promise<void> {
    const ids = rows.flatMap(({ type, waits_for: id }) => (type === 'approval' && id !== null ? [id] : []))
    if (ids.length === 0) return
    const { tx } = this.#deps
    await tx.query({
      text: `UPDATE approvals SET status = $3, resolved_by = $4, resolved_at = now()
             WHERE tenant_id = $1 AND id = ANY ($2) AND status = 'waiting'`,
      values: [tx.tenantId, ids, status, by ?? null],
    })
  }

  /** The outcome of a waiting node whose time has come. Undefined: an agent still has time left, because its run waited for people. */
  async whenDue(row: NodeRow) {
    const { nodes, notices } = this.#deps
    const spec = nodes.spec(row)
    if (await this.#timeLeft(row)) return undefined
    if (spec.type !== 'approval') {
      notices.leave(row)
      return timeUp(spec)
    }
    const approve = spec.onExpiry === 'approve'
    await this.close([row], approve ? 'approved' : 'rejected', 'expiry')
    return approvalOutcome(approve, { by: 'expiry' })
  }
  /** Recomputes the deadline of an agent whose run waits for people, or has waited for them. */
  async retime(nodeId: string): Promise<void> {
    const row = (await this.#deps.nodes.load([nodeId])).get(nodeId)
    if (row?.status !== running || row.leased) return
    if (!(await this.#timeLeft(row))) this.#deps.notices.wake()
  }
  /**
   * Updates the deadline of an agent and tells whether time is left. Time in which its run waits for people does not count. While the run waits, it
   * has no deadline; whoever resumes the run wakes the workflow.
   */
  async #timeLeft({ id, attempt, ...row }: NodeRow): Promise<boolean> {
    const { tx, runId, nodes, notices } = this.#deps
    const spec = nodes.spec({ id })
    if (row.type !== 'agent' || spec.type !== 'agent') return false
    const [left] = await tx.query<{ in_ms: number | null }>({
      text: `UPDATE workflow_nodes n SET due_at = CASE WHEN r.parked_at IS NULL THEN coalesce(r.queued_at, r.started_at)
               + ($4::float8 + coalesce(r.waited_ms, 0)) * interval '1 millisecond' END
             FROM runs r WHERE n.tenant_id = $1 AND n.run_id = $2 AND n.id = $3 AND r.tenant_id = $1 AND r.id = n.waits_for
             RETURNING (extract(epoch FROM n.due_at - clock_timestamp()) * 1000)::float8 AS in_ms`,
      values: [tx.tenantId, runId, id, timeoutMsOf(spec)],
    })
    if (!left) return false
    const inMs = left.in_ms
    if (inMs !== null && inMs > 0) notices.wake(inMs, `${runId}/${id}/${attempt}`)
    return inMs === null || inMs > 0
  }
}

/** How often a call is repeated because its process died. */
const mostLost = 5

interface RetriesDeps {
  readonly runId: string
  readonly nodes: NodeTable
  readonly notices: Notices
  /** Concurrency keys that the transaction frees. */
  readonly freed: Set<string>
}

/** Decides which nodes of a run begin again, and when. Works in the transaction that holds the run. */
export class Retries {
  readonly #deps: RetriesDeps
  constructor(deps: RetriesDeps) {
    this.#deps = deps
  }

  /** Repeats an attempt under the same number, after `inMs`. */
  async putBack(row: NodeRow, inMs: number): Promise<void> {
    await this.#again(row, { inMs })
    // The next claim adds one again, so the number of the attempt stays the same.
    await this.#deps.nodes.count(row.id, { attempt: -1 })
  }
  async triesAgain(row: NodeRow, error: Failure | undefined, costCents: number | undefined): Promise<boolean> {
    const { retry } = this.#deps.nodes.spec(row)
    if (!retry || row.tries >= retry.max || error?.retryable === false) return false
    const inMs = delayMs(retry, row.tries)
    await this.#again(row, { inMs, tries: 1, ...(error ? { error } : {}), costCents: costCents ?? 0 })
    return true
  }
  /**
   * Handles an attempt whose process has died, so that its result is unknown. Repeats the attempt, but fails a call with `onLost: fail` or after
   * `mostLost` losses.
   */
  async lose(row: NodeRow): Promise<Ended | undefined> {
    const { nodes } = this.#deps
    const isCall = row.type === 'tool' || row.type === 'http'
    if (isCall && (nodes.spec(row).onLost === 'fail' || row.lost >= mostLost)) {
      return { row, status: failed, output: undefined, error: lostError, costCents: undefined }
    }
    await nodes.count(row.id, { lost: 1 })
    const inMs = Math.min(row.lost * 2_000, 60_000)
    // Only calls get a new attempt. Agents and child runs have ids that follow from the attempt, so repeating the same attempt joins them.
    return void (await (isCall ? this.#again(row, { inMs, error: lostError }) : this.putBack(row, inMs)))
  }

  async #again(row: NodeRow, how: Parameters<NodeTable['again']>[1]): Promise<void> {
    const { runId, nodes, notices, freed } = this.#deps
    await nodes.again(row, how)
    notices.tell(row.id, ready, row.attempt, how.error)
    if (row.concurrency_key !== null) freed.add(row.concurrency_key)
    if (how.inMs > 0) notices.wake(how.inMs, `${runId}/${row.id}/${row.attempt}/again`)
  }
}
