import type { Approvals } from '#contracts/approvals'
import type { TenantTx } from '#contracts/database'
import { claimedOf, Claims } from './claims.store.ts'
import {
  cancelled,
  type Ended,
  failed,
  type NodeRow,
  NodeTable,
  ok,
  ready,
  running,
  skipped,
  statusOf,
} from './nodes.store.ts'
import { type Claimed, delayMs, type Failure, lostError, type Outcome, unsaid } from './outcome.ts'
import { Notices, starts } from './notices.ts'
import { holdRun, moveRun, type RunRow } from './run-row.ts'
import type { Outputs } from './outputs.ts'
import { type Conclusion, outputOf } from './run-output.ts'
import { type RunStatus, type TerminalStatus } from './schema.ts'
import { Waits } from './waits.ts'

/** What a transition needs beside its transaction. */
export interface TransitionDeps {
  /** Outputs of more characters than these have in a row are put together outside of it. */
  readonly outputs: Pick<Outputs, 'above'>
  readonly approvals: Approvals
}

/** So often a call whose process died is made again. */
const mostLost = 5

/**
 * All that happens to a workflow run at one time, in one transaction that holds the row of the run: so each transition compares and
 * sets, and what follows from it, the events and the wake-ups come to be with it or not at all.
 */
export class Transition {
  readonly run: RunRow
  readonly notices: Notices
  readonly waits: Waits
  /** When somebody has to look at the run again, in milliseconds, where another process executes a part of it. */
  leasedForMs: number | undefined
  /** All its nodes are over, and what it gives is to be made: by `conclude`, outside of any transaction. */
  concludes = false
  readonly #tx: TenantTx
  readonly #deps: TransitionDeps
  readonly #nodes: NodeTable
  readonly #claims: Claims
  readonly #freed = new Set<string>()
  readonly #statusBefore: RunStatus

  private constructor(tx: TenantTx, run: RunRow, deps: TransitionDeps) {
    this.#tx = tx
    this.#deps = deps
    this.run = run
    this.#nodes = new NodeTable(tx, run.id)
    this.#claims = new Claims(tx, run, this.#nodes)
    this.#statusBefore = run.status
    this.notices = new Notices(tx.tenantId, run)
    const { approvals } = deps
    this.waits = new Waits({ tx, runId: run.id, nodes: this.#nodes, notices: this.notices, approvals })
  }
  static async of(tx: TenantTx, runId: string, deps: TransitionDeps): Promise<Transition | undefined> {
    const run = await holdRun(tx, runId)
    return run && new Transition(tx, run, deps)
  }

  get open(): boolean {
    return this.run.status === 'running' || this.run.status === 'paused'
  }

  /** Takes the outcomes of attempts. One that is about an older attempt, or a node that is over, changes nothing. */
  async apply(outcomes: readonly Outcome[]): Promise<void> {
    const well = outcomes.filter((one) => one.kind === 'over' && one.status === 'ok' && !one.skips?.length)
    if (well.length > 0) await this.#endWell(well as Extract<Outcome, { kind: 'over' }>[])
    const others = outcomes.filter((one) => !well.includes(one))
    if (others.length === 0) return
    const rows = await this.#nodes.load(others.map(({ node }) => node))
    const ended: Ended[] = []
    const skips: string[] = []
    for (const outcome of others) {
      const row = rows.get(outcome.node)
      if (!row || row.status !== running || row.attempt !== outcome.attempt) this.#leaveLate(outcome, row)
      // One that was stored already, though whoever did never heard of it.
      else if (outcome.kind !== 'over' && !row.leased) continue
      else {
        rows.delete(outcome.node)
        const over = await this.#take(row, outcome)
        if (!over) continue
        ended.push(over)
        if (outcome.kind === 'over') skips.push(...(outcome.skips ?? []))
      }
    }
    await this.end(ended, skips)
  }
  async #endWell(outcomes: readonly Extract<Outcome, { kind: 'over' }>[]): Promise<void> {
    const { ended, moved } = await this.#nodes.endWell(outcomes)
    for (const { id, attempt, concurrency_key } of ended) {
      this.notices.tell(id, ok, attempt)
      if (concurrency_key !== null) this.#freed.add(concurrency_key)
    }
    for (const { id, status, attempt } of moved) this.notices.tell(id, status, attempt)
    this.run.unfinished -= ended.filter(({ parent }) => parent === null).length
    await this.#endParts(ended.filter(({ parent }) => parent !== null))
  }
  /** Undefined: the node is not over by it. */
  async #take(row: NodeRow, outcome: Outcome): Promise<Ended | undefined> {
    switch (outcome.kind) {
      case 'parked': {
        const error = outcome.approval && (await this.waits.ask(row.id, outcome.approval))
        if (!error) return this.#park(row, outcome)
        return this.#take(row, { node: row.id, attempt: row.attempt, kind: 'over', status: 'error', error })
      }
      case 'parts':
        return void (await this.#divide(row, outcome))
      case 'later':
        return void (await this.#putBack(row, outcome.inMs))
      case 'lost':
        return this.#lose(row)
      case 'over': {
        const { status, output, error, costCents } = outcome
        if (status === 'error' && (await this.#triesAgain(row, error, costCents))) return undefined
        return { row, status: statusOf(status), output, error, costCents }
      }
    }
  }
  /** What an attempt has started that does not count any more must not go on: its run was cancelled meanwhile, or its time was up. */
  #leaveLate(outcome: Outcome, row: NodeRow | undefined): void {
    if (outcome.kind !== 'parked' || outcome.waitsFor === undefined || !row) return
    const isOver = row.attempt > outcome.attempt || (row.attempt === outcome.attempt && row.status !== running)
    if (isOver) this.notices.leave({ ...row, waits_for: outcome.waitsFor })
  }
  /** Ends nodes whatever they did: those of a client's own mind, too. */
  async endNodes(
    ids: readonly string[],
    status: TerminalStatus,
    { output, error }: { readonly output?: string; readonly error?: Failure } = {},
  ): Promise<void> {
    const rows = [...(await this.#nodes.load(ids)).values()]
    for (const row of rows) {
      // A failed node that is given another end holds its run up no longer.
      if (row.status === failed) this.run.failed--
      if (row.status === running) this.notices.leave(row)
    }
    await this.waits.close(rows, 'cancelled')
    await this.end(
      rows.map((row) => ({ row, status: statusOf(status), output, error, costCents: undefined })),
      [],
    )
  }

  /** Ends nodes, and carries on with what depends on them until nothing more follows. */
  async end(ended: readonly Ended[], skips: readonly string[]): Promise<void> {
    if (ended.length > 0) await this.#nodes.write(ended)
    for (const { row, status, error } of ended) {
      this.notices.tell(row.id, status, row.attempt, error)
      if (row.concurrency_key !== null) this.#freed.add(row.concurrency_key)
    }
    let passing: { id: string; alive: boolean }[] = []
    const parts: Ended[] = []
    for (const one of ended) {
      const { row, status } = one
      if (status === failed && !this.#nodes.spec(row).continueOnError) {
        this.run.failed++
        this.run.error = { ...(one.error ?? unsaid), node: row.id }
        continue
      }
      if (row.parent === null) passing.push({ id: row.id, alive: status === ok || status === failed })
      else parts.push(one)
    }
    if (skips.length > 0) {
      for (const { id, attempt } of await this.#nodes.skip(skips)) {
        this.notices.tell(id, skipped, attempt)
        passing.push({ id, alive: false })
      }
    }
    while (passing.length > 0) {
      this.run.unfinished -= passing.length
      const moved = await this.#nodes.pass(passing)
      for (const { id, status, attempt } of moved) this.notices.tell(id, status, attempt)
      passing = moved.filter(({ status }) => status === skipped).map(({ id }) => ({ id, alive: false }))
    }
    await this.#endParts(parts.map(({ row }) => row))
  }

  /** Looks at what is due: times that were waited for, deadlines, and attempts of processes that are gone. */
  async takeDue(owner: string, underWay: readonly string[]): Promise<void> {
    const rows = await this.#claims.due(owner, underWay)
    if (rows.length === 0) return
    const outcomes: Outcome[] = []
    for (const row of rows) {
      const of = { node: row.id, attempt: row.attempt } as const
      if (row.lease_ms === null) {
        const over = await this.waits.whenDue(row)
        if (over) outcomes.push({ ...of, ...over })
      } else if (row.lease_ms > 0) this.leasedForMs = Math.min(this.leasedForMs ?? Infinity, row.lease_ms)
      else outcomes.push({ ...of, kind: 'lost' })
    }
    await this.apply(outcomes)
  }

  /** Takes on ready nodes, the most urgent first. */
  async claim(owner: string, most: number): Promise<Claimed[]> {
    if (this.run.status !== 'running' || most <= 0) return []
    const rows = await this.#claims.take(owner, most, this.#freed)
    if (rows.length === 0) return []
    // What this process does not take another one may.
    if (rows.length === most) this.notices.wake()
    for (const { id, attempt } of rows) this.notices.tell(id, running, attempt)
    const budget = await this.#claims.budget(rows)
    const refused = budget.refused ? rows.filter(({ type }) => starts(type)) : []
    await this.apply(refused.map(({ id, attempt }) => ({ node: id, attempt, ...budget.refused! })))
    return rows
      .filter((row) => !refused.includes(row))
      .map((row) => claimedOf(row, this.#nodes.spec(row), budget.cents))
  }

  /** Ends the run before its nodes: what is under way is left and cancelled. */
  async endRun(status: 'cancelled' | 'failed', error?: Failure): Promise<void> {
    const rows = await this.#nodes.cancel()
    for (const row of rows) this.notices.tell(row.id, cancelled, row.attempt)
    for (const { concurrency_key } of rows) if (concurrency_key !== null) this.#freed.add(concurrency_key)
    await this.waits.close(rows, 'cancelled')
    if (rows.some(({ type, attempt }) => starts(type) && attempt > 0)) {
      this.notices.leaveAll()
    }
    this.run.status = status
    this.run.error = error ?? this.run.error
  }

  /** Writes down what the run has come to, tells readers, and says who is to be woken. Resolves to whether anything changed. */
  async finish(): Promise<boolean> {
    if (this.open) await this.#settle()
    if (!this.open && this.run.status !== 'pending' && this.run.status !== this.#statusBefore) this.notices.over()
    // Others may wait for a key that was freed.
    for (const key of [...this.#freed].toSorted()) {
      for (const runId of await this.#claims.waiting(key)) this.notices.queue({ runId }, runId)
    }
    if (this.run.status === this.#statusBefore && !this.notices.told) return false
    this.run.seq++
    await moveRun(this.#tx, this.run, this.notices.event())
    return true
  }

  /** Carries on with maps and loops of which parts are over. */
  async #endParts(parts: readonly Pick<NodeRow, 'parent'>[]): Promise<void> {
    const byParent = Map.groupBy(parts, ({ parent }) => parent!)
    for (const [parent, over] of byParent) {
      const row = await this.#nodes.partsOver(parent, over.length)
      if (!row) continue
      // A loop looks at its condition before it goes on: that is an attempt of its own.
      if (row.type === 'loop') await this.#putBack(row, 0)
      else if (row.waits > 0) {
        for (const id of await this.#nodes.nextParts(parent, over.length)) this.notices.tell(id, ready, 0)
      } else await this.#gather(row)
    }
  }

  /** The output of a map: those of its parts, in their order. What is large, or to be looked at, is an attempt of its own, as with loops. */
  async #gather(row: NodeRow): Promise<void> {
    const isChecked = 'outputSchema' in this.#nodes.spec(row)
    const output = isChecked ? undefined : await this.#nodes.gather(row, this.#deps.outputs.above)
    if (output === undefined) return this.#putBack(row, 0)
    await this.end([{ row, status: ok, output, error: undefined, costCents: undefined }], [])
  }
  async #park(row: NodeRow, parked: Extract<Outcome, { kind: 'parked' }>): Promise<Ended | undefined> {
    const { waitsFor, dueInMs } = parked
    const output = await this.#nodes.park(row, parked)
    if (output !== undefined) return { row, status: ok, output, error: undefined, costCents: undefined }
    // What it waits for may be over by now. Under a key of its own: a wake-up of its end that waits just now may be done before this
    // transaction is, and would find nobody who waits.
    const key = `${waitsFor}/parked`
    if (row.type === 'agent') this.notices.queue({ agent: waitsFor! }, key)
    if (row.type === 'workflow') this.notices.queue({ runId: this.run.id, node: row.id, child: waitsFor! }, key)
    if (dueInMs !== undefined) this.notices.wake(dueInMs, `${this.run.id}/${row.id}/${row.attempt}`)
    return undefined
  }
  async #divide(row: NodeRow, parts: Extract<Outcome, { kind: 'parts' }>): Promise<void> {
    await this.#nodes.divide(row, parts)
    const { items, first, atOnce } = parts
    for (let part = 0; part < Math.min(items.length, atOnce); part++)
      this.notices.tell(`${row.id}.${first + part}`, ready, 0)
    if (items.length > 0) return
    await this.end([{ row, status: ok, output: '[]', error: undefined, costCents: undefined }], [])
  }
  /** Makes a node ready again. */
  async #again(row: NodeRow, how: Parameters<NodeTable['again']>[1]): Promise<void> {
    await this.#nodes.again(row, how)
    this.notices.tell(row.id, ready, row.attempt, how.error)
    if (row.concurrency_key !== null) this.#freed.add(row.concurrency_key)
    if (how.inMs > 0) this.notices.wake(how.inMs, `${this.run.id}/${row.id}/${row.attempt}/again`)
  }

  async #putBack(row: NodeRow, inMs: number): Promise<void> {
    await this.#again(row, { inMs })
    // The claim counts it again.
    await this.#nodes.count(row.id, { attempt: -1 })
  }
  async #triesAgain(row: NodeRow, error: Failure | undefined, costCents: number | undefined): Promise<boolean> {
    const { retry } = this.#nodes.spec(row)
    if (!retry || row.tries >= retry.max || error?.retryable === false) return false
    const inMs = delayMs(retry, row.tries)
    await this.#again(row, { inMs, tries: 1, ...(error ? { error } : {}), costCents: costCents ?? 0 })
    return true
  }
  /** The process that executed it has ended, and its result is unknown. */
  async #lose(row: NodeRow): Promise<Ended | undefined> {
    const isCall = row.type === 'tool' || row.type === 'http'
    if (isCall && (this.#nodes.spec(row).onLost === 'fail' || row.lost >= mostLost)) {
      return { row, status: failed, output: undefined, error: lostError, costCents: undefined }
    }
    await this.#nodes.count(row.id, { lost: 1 })
    const inMs = Math.min(row.lost * 2_000, 60_000)
    // Whatever else a process begins, it begins again under the same name.
    return void (await (isCall ? this.#again(row, { inMs, error: lostError }) : this.#putBack(row, inMs)))
  }

  async #settle(): Promise<void> {
    const { run } = this
    if (run.failed > 0) {
      if (run.settings.onFailure === 'fail') await this.endRun('failed', run.error)
      else run.status = 'paused'
      return
    }
    run.status = 'running'
    if (run.unfinished > 0) return
    run.output = await outputOf(this.#tx, run.id, run.settings, this.#deps.outputs.above)
    this.concludes = run.output === undefined
    if (!this.concludes) run.status = 'completed'
  }

  /** Ends a run whose nodes are over, unless somebody has done so, or has begun one of them again. */
  conclude(made: Conclusion): void {
    const { run, open } = this
    if (!open || run.unfinished > 0 || run.failed > 0) return
    run.status = 'output' in made ? 'completed' : 'failed'
    if ('output' in made) run.output = made.output
    else run.error = made.error
  }
}
