import { type Ended, failed, type NodeRow, type NodeTable, ready } from './nodes.store.ts'
import type { Notices } from './notices.ts'
import { delayMs, type Failure, lostError } from './outcome.ts'

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
