import type { Wake } from '#contracts/jobs'
import type { NodeType } from './node.schema.ts'
import { running } from './nodes.store.ts'
import { offerOf } from './offers.ts'
import { type Failure, type Outcome, startedBy } from './outcome.ts'
import type { RunRow } from './run-row.ts'
import { runStatuses } from './schema.ts'

/** Whether nodes of a type start a run that costs money and has to be cancelled with the node. */
export const starts = (type: NodeType): boolean => type === 'agent' || type === 'workflow'

interface Started {
  readonly id: string
  readonly type: NodeType
  readonly attempt: number
  readonly waits_for: string | null
}

/** The wake-ups and events of a transition: stored with it, or not at all. */
export class Notices {
  readonly wakes: Wake[] = []
  readonly #tenantId: string
  readonly #run: RunRow
  readonly #changed = new Map<string, Change>()
  constructor(tenantId: string, run: RunRow) {
    this.#tenantId = tenantId
    this.#run = run
  }

  get told(): boolean {
    return this.#changed.size > 0
  }

  /** Adds a node with its new status to the event for readers. */
  tell(id: string, status: number, attempt: number, error?: Failure): void {
    this.#changed.set(id, { status, attempt, ...(error ? { error } : {}) })
  }
  /** Sends a wake-up, now or after `afterMs`. At most one wake-up with the same key is pending. */
  queue(what: Readonly<Record<string, string>>, key: string, afterMs?: number): void {
    const tenantId = this.#tenantId
    this.wakes.push({ tenantId, what: { tenantId, ...what }, key, ...(afterMs === undefined ? {} : { afterMs }) })
  }
  /** Sends a wake-up for the run. */
  wake(afterMs?: number, key = this.#run.id): void {
    this.queue({ runId: this.#run.id }, key, afterMs)
  }
  /** Offers the run to processes that have room for its ready nodes. */
  offer(): void {
    this.wakes.push(offerOf(this.#tenantId, this.#run.id))
  }
  /** Cancels the run that an attempt has started. The node may not know that run yet (`waits_for`); its id then follows from the attempt. */
  leave({ id, type, attempt, waits_for }: Started): void {
    if (!starts(type)) return
    const started = waits_for ?? startedBy(this.#run.id, id, attempt)
    this.queue({ runId: this.#run.id, leave: started, type }, `${started}/leave`)
  }
  /** Cancels a run that an attempt reports too late: the workflow run was cancelled meanwhile, or the time of the node was up. */
  leaveLate(outcome: Outcome, row: (Started & { readonly status: number }) | undefined): void {
    if (outcome.kind !== 'parked' || outcome.waitsFor === undefined || !row) return
    const isOver = row.attempt > outcome.attempt || (row.attempt === outcome.attempt && row.status !== running)
    if (isOver) this.leave({ ...row, waits_for: outcome.waitsFor })
  }
  /** Cancels the runs of all nodes that were cancelled with the workflow run. */
  leaveAll(): void {
    this.queue({ runId: this.#run.id, leave: 'yes' }, `${this.#run.id}/leave`)
  }
  /** Wakes runs that wait for the end of this run. */
  over(): void {
    const { id, parentRun, parentNode } = this.#run
    if (parentRun !== undefined && parentNode !== undefined) {
      this.queue({ runId: parentRun, node: parentNode, child: id }, `${id}/over`)
    }
    this.rests()
  }
  /** Wakes the schedule of the run, because its next run may begin. A paused run waits for a person and does not hold the schedule up. */
  rests(): void {
    const { id, scheduleId } = this.#run
    if (scheduleId !== undefined) this.queue({ scheduleId }, `${scheduleId}/${id}`)
  }

  /** The `plan_status` of the transition, as JSON. */
  event(): string {
    return eventOf(this.#run, this.#changed)
  }
}

interface Change {
  readonly status: number
  readonly attempt: number
  readonly error?: Failure
}
export function eventOf(
  { id, status, error }: Pick<RunRow, 'id' | 'status'> & { readonly error?: Failure | undefined },
  changed: Iterable<readonly [node: string, Change]>,
): string {
  const nodes = [...changed].map(([node, change]) => ({ id: node, ...change }))
  return JSON.stringify({
    workflowRun: { id, runId: id, status: runStatuses.indexOf(status), ...(error ? { error } : {}), nodes },
  })
}
