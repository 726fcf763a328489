import { type Ended, failed, type NodeRow, type NodeTable, ready } from './nodes.store.ts'
import type { Notices } from './notices.ts'
import { delayMs, type Failure, lostError } from './outcome.ts'

/** So often a call whose process died is made again. */
const mostLost = 5

interface RetriesDeps {
  readonly runId: string
  readonly nodes: NodeTable
  readonly notices: Notices
  /** Keys of concurrency that the transaction frees. */
  readonly freed: Set<string>
}

/** Which nodes of one run begin again, and when, in the transaction that holds it. */
export class Retries {
  readonly #deps: RetriesDeps
  constructor(deps: RetriesDeps) {
    this.#deps = deps
  }

  /** Has the same attempt made again. */
  async putBack(row: NodeRow, inMs: number): Promise<void> {
    await this.#again(row, { inMs })
    // The claim counts it again.
    await this.#deps.nodes.count(row.id, { attempt: -1 })
  }
  async triesAgain(row: NodeRow, error: Failure | undefined, costCents: number | undefined): Promise<boolean> {
    const { retry } = this.#deps.nodes.spec(row)
    if (!retry || row.tries >= retry.max || error?.retryable === false) return false
    const inMs = delayMs(retry, row.tries)
    await this.#again(row, { inMs, tries: 1, ...(error ? { error } : {}), costCents: costCents ?? 0 })
    return true
  }
  /** The process that executed it has ended, and its result is unknown. */
  async lose(row: NodeRow): Promise<Ended | undefined> {
    const { nodes } = this.#deps
    const isCall = row.type === 'tool' || row.type === 'http'
    if (isCall && (nodes.spec(row).onLost === 'fail' || row.lost >= mostLost)) {
      return { row, status: failed, output: undefined, error: lostError, costCents: undefined }
    }
    await nodes.count(row.id, { lost: 1 })
    const inMs = Math.min(row.lost * 2_000, 60_000)
    // Whatever else a process begins, it begins again under the same name.
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
