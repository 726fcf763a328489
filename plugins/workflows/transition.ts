import type { Approvals } from '#contracts/approvals'
import type { TenantTx } from '#contracts/database'
import { claimedOf, Claims, type DueRow } from './claims.store.ts'
import {
  cancelled,
  type Counted,
  type Ended,
  type EndedWell,
  failed,
  type NodeRow,
  NodeTable,
  ok,
  ready,
  running,
  skipped,
  statusOf,
} from './nodes.store.ts'
import { type Claimed, type Failure, isWell, type Outcome, unsaid } from './outcome.ts'
import { Notices, starts } from './notices.ts'
import { Retries, Waits } from './waits.ts'
import { movedRun, type RunRow } from './run-row.ts'
import type { Outputs } from './outputs.ts'
import { type First, type Opening, openRun } from './opening.ts'
import { type Conclusion, outputOf } from './run-output.ts'
import { type RunStatus, type TerminalStatus } from './schema.ts'

/** What a transition needs beside its transaction. */
export interface TransitionDeps {
  /** Outputs of maps and runs with more characters than `above` are joined outside of the transaction. */
  readonly outputs: Pick<Outputs, 'above'>
  readonly approvals: Approvals
}

/**
 * Everything that happens to a workflow run at one time, in one transaction that locks the row of the run. Each transition is thus a compare-and-set,
 * and is stored together with its consequences, events and wake-ups or not at all.
 */
export class Transition {
  readonly run: RunRow
  readonly notices: Notices
  readonly waits: Waits
  /** Milliseconds after which the run has to be checked again, because another process executes a part of it under a lease. */
  leasedForMs: number | undefined
  /** All nodes have ended, and `conclude` has to make the output of the run, outside of any transaction. */
  concludes = false
  readonly #tx: TenantTx
  readonly #deps: TransitionDeps
  readonly #nodes: NodeTable
  readonly #claims: Claims
  readonly #freed = new Set<string>()
  readonly #retries: Retries
  readonly #statusBefore: RunStatus

  #due: readonly DueRow[] = []
  #first: First = { claimed: [], done: undefined }
  /** There may be ready or executed nodes that the first claim did not see. */
  #mayBeMore = true

  private constructor(tx: TenantTx, run: RunRow, nodes: NodeTable, deps: TransitionDeps) {
    this.#tx = tx
    this.#deps = deps
    this.run = run
    this.#nodes = nodes
    this.#claims = new Claims(tx, run, this.#nodes)
    this.#statusBefore = run.status
    this.notices = new Notices(tx.tenantId, run)
    this.#retries = new Retries({ runId: run.id, nodes, notices: this.notices, freed: this.#freed })
    const { approvals } = deps
    this.waits = new Waits({ tx, runId: run.id, nodes: this.#nodes, notices: this.notices, approvals })
  }
  /** Locks the run and applies the outcomes of the opening. Undefined: there is no such run. */
  static async of(
    tx: TenantTx,
    runId: string,
    deps: TransitionDeps,
    opening: Opening,
  ): Promise<Transition | undefined> {
    const nodes = new NodeTable(tx, runId)
    const opened = await openRun(tx, runId, nodes, opening)
    if (!opened) return undefined
    const made = new Transition(tx, opened.run, nodes, deps)
    made.#due = opened.due
    made.#first = opened.first
    made.#mayBeMore = opened.mayBeMore
    await made.#endWell(opened.ended)
    await made.apply(opened.others)
    return made
  }

  get open(): boolean {
    return this.run.status === 'running' || this.run.status === 'paused'
  }

  /** Applies outcomes of attempts. An outcome of an older attempt, or of a node that has ended, changes nothing. */
  async apply(outcomes: readonly Outcome[]): Promise<void> {
    const well = outcomes.filter(isWell)
    if (well.length > 0) await this.#endWell(await this.#tx.query(this.#nodes.endedWell(well)))
    const others: readonly Outcome[] = outcomes.filter((one) => !isWell(one))
    if (others.length === 0) return
    this.#mayBeMore = true
    const rows = await this.#nodes.load(others.map(({ node }) => node))
    const ended: Ended[] = []
    const skips: string[] = []
    for (const outcome of others) {
      const row = rows.get(outcome.node)
      if (!row || row.status !== running || row.attempt !== outcome.attempt) this.notices.leaveLate(outcome, row)
      // The outcome was stored before, but the process that stored it did not learn of the commit.
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
  async #endWell(rows: readonly EndedWell[]): Promise<void> {
    for (const { kind, id, status, parent, attempt, concurrency_key } of rows) {
      if (kind !== 'counted') this.notices.tell(id, status, attempt)
      if (kind !== 'ended') continue
      if (concurrency_key !== null) this.#freed.add(concurrency_key)
      if (parent === null) this.run.unfinished--
    }
    for (const { counted } of rows) if (counted) await this.#partsOver(counted)
  }
  /** Applies one outcome. Undefined: the outcome does not end the node. */
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
        return void (await this.#retries.putBack(row, outcome.inMs))
      case 'lost':
        return this.#retries.lose(row)
      case 'over': {
        const { status, output, error, costCents } = outcome
        if (status === 'error' && (await this.#retries.triesAgain(row, error, costCents))) return undefined
        return { row, status: statusOf(status), output, error, costCents }
      }
    }
  }
  /** Ends nodes as a client asks, whatever their status is, and cancels their parts. */
  async endNodes(
    ids: readonly string[],
    status: TerminalStatus,
    { output, error }: { readonly output?: string; readonly error?: Failure } = {},
  ): Promise<void> {
    const rows = [...(await this.#nodes.load(ids)).values()]
    const parts = await this.#nodes.cancelBelow(rows)
    for (const row of [...rows, ...parts]) {
      // A failed node that gets another status no longer holds its run up.
      if (row.status === failed) this.run.failed--
      if (row.status === running) this.notices.leave(row)
    }
    await this.#cancelled(parts)
    await this.waits.close(rows, 'cancelled')
    await this.end(
      rows.map((row) => ({ row, status: statusOf(status), output, error, costCents: undefined })),
      [],
    )
  }

  /** Ends nodes, and then updates the nodes that depend on them until nothing more follows. */
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

  /** Handles due nodes: waits whose time has come, deadlines, and attempts of processes that have died. */
  async takeDue(): Promise<void> {
    const rows = this.#due
    if (rows.length === 0) return
    await this.#nodes.loadSpecs(rows)
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

  /** Claims ready nodes for a process, the most urgent first. `offers`: whether it is time to offer to other processes what this one leaves. */
  async claim(owner: string, most: number, offers: () => boolean): Promise<Claimed[]> {
    const rows = [...this.#first.claimed]
    await this.#nodes.loadSpecs(rows)
    const isOver = this.run.status !== 'running' || this.run.unfinished === 0
    if (this.#mayBeMore && !isOver && rows.length < most) {
      rows.push(...(await this.#claims.take(owner, most - rows.length, this.#freed)))
    }
    if (rows.length === 0) return []
    // There may be more ready nodes than this process takes.
    if (rows.length === most && offers()) this.notices.offer()
    for (const { id, attempt } of rows) this.notices.tell(id, running, attempt)
    const budget = await this.#claims.budget(rows)
    const refused = budget.refused ? rows.filter(({ type }) => starts(type)) : []
    await this.apply(refused.map(({ id, attempt }) => ({ node: id, attempt, ...budget.refused! })))
    return rows
      .filter((row) => !refused.includes(row))
      .map((row) => claimedOf(row, this.#nodes.spec(row), budget.cents))
  }

  /** Ends the run before its nodes have ended: cancels the nodes under way and the runs that they started. */
  async endRun(status: 'cancelled' | 'failed', error?: Failure): Promise<void> {
    const rows = await this.#nodes.cancel()
    await this.#cancelled(rows)
    if (rows.some(({ type, attempt }) => starts(type) && attempt > 0)) this.notices.leaveAll()
    this.run.status = status
    this.run.error = error ?? this.run.error
  }
  async #cancelled(rows: readonly NodeRow[]): Promise<void> {
    for (const { id, attempt, concurrency_key } of rows) {
      this.notices.tell(id, cancelled, attempt)
      if (concurrency_key !== null) this.#freed.add(concurrency_key)
    }
    await this.waits.close(rows, 'cancelled')
  }

  /** Stores the new state of the run and its event, and adds the wake-ups that follow. Resolves to whether anything changed. */
  async finish(): Promise<boolean> {
    if (this.open) await this.#settle()
    if (!this.open && this.run.status !== 'pending' && this.run.status !== this.#statusBefore) this.notices.over()
    if (this.run.status === 'paused' && this.run.status !== this.#statusBefore) this.notices.rests()
    // Other runs may wait for a concurrency key that this transition has freed.
    for (const key of [...this.#freed].toSorted()) {
      for (const runId of await this.#claims.waiting(key)) this.notices.queue({ runId }, runId)
    }
    if (this.run.status === this.#statusBefore && !this.notices.told) return false
    this.run.seq++
    this.#tx.atEnd(movedRun(this.#tx.tenantId, this.run, this.notices.event()))
    return true
  }

  /** Counts parts that have ended. */
  async #endParts(parts: readonly Pick<NodeRow, 'parent'>[]): Promise<void> {
    for (const [parent, over] of Map.groupBy(parts, (part) => part.parent!)) {
      const row = await this.#nodes.partsOver(parent, over.length)
      if (row) await this.#partsOver(row)
    }
  }
  /** Continues a map or loop of which parts have ended. */
  async #partsOver(row: Counted): Promise<void> {
    await this.#nodes.loadSpecs([row])
    const spec = this.#nodes.spec(row)
    // Without a limit of its own, all parts of a map were made ready when it was divided.
    if (spec.type === 'map' && spec.concurrency === undefined && row.waits > 0) return
    this.#mayBeMore = true
    // A loop evaluates its condition before the next part, in an attempt of its own.
    if (row.type === 'loop') return this.#retries.putBack(row, 0)
    if (row.waits <= 0) return this.#gather(row)
    for (const id of await this.#nodes.nextParts(row.id, row.over)) this.notices.tell(id, ready, 0)
  }

  /** Joins the outputs of the parts of a map, in order. A large output, or one with a schema, needs an attempt of its own, as loops do. */
  async #gather(row: NodeRow): Promise<void> {
    const isChecked = 'outputSchema' in this.#nodes.spec(row)
    const output = isChecked ? undefined : await this.#nodes.gather(row, this.#deps.outputs.above)
    if (output === undefined) return this.#retries.putBack(row, 0)
    await this.end([{ row, status: ok, output, error: undefined, costCents: undefined }], [])
  }
  async #park(row: NodeRow, parked: Extract<Outcome, { kind: 'parked' }>): Promise<Ended | undefined> {
    const { waitsFor, dueInMs } = parked
    const output = await this.#nodes.park(row, parked)
    if (output !== undefined) return { row, status: ok, output, error: undefined, costCents: undefined }
    // The awaited run may have ended already, so a wake-up checks it. It has a key of its own: the wake-up of the end may be handled before this
    // transaction commits, and then finds no node that waits.
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
  async #settle(): Promise<void> {
    const { run } = this
    if (run.failed > 0) {
      if (run.settings.onFailure === 'fail') await this.endRun('failed', run.error)
      else run.status = 'paused'
      return
    }
    run.status = 'running'
    if (run.unfinished > 0) return
    const done = this.#mayBeMore ? undefined : this.#first.done
    run.output = await outputOf(this.#tx, run.id, run.settings, { most: this.#deps.outputs.above, done })
    this.concludes = run.output === undefined
    if (!this.concludes) run.status = 'completed'
  }

  /** Ends a run whose nodes have all ended, unless the run was ended or one of its nodes begun again meanwhile. */
  conclude(made: Conclusion): void {
    const { run, open } = this
    if (!open || run.unfinished > 0 || run.failed > 0) return
    run.status = 'output' in made ? 'completed' : 'failed'
    if ('output' in made) run.output = made.output
    else run.error = made.error
  }
}
