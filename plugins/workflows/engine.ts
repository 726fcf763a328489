import { randomUUID } from 'node:crypto'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Database, TenantTx } from '#contracts/database'
import type { Wake, WakeUps } from '#contracts/jobs'
import type { Kv } from '#contracts/kv'
import type { TenantLimits } from '#contracts/limits'
import { retry } from '#kit'
import type { FirstClaim } from './claims.store.ts'
import { type Begun, claimsOf, guardOf, wakeOf } from './creation.store.ts'
import { type Driver, newDriver, renewLeases } from './driver.ts'
import type { Attempt, Execution } from './execution.ts'
import type { WorkflowMetrics } from './metrics.ts'
import { leaseMs } from './nodes.store.ts'
import type { Outcome } from './outcome.ts'
import type { Outputs, RunKey } from './outputs.ts'
import type { Opening } from './opening.ts'
import { offerOf, Offers } from './offers.ts'
import { Room } from './room.ts'
import type { Conclusion } from './run-output.ts'
import type { RunSettings } from './schema.ts'
import { Transition, type TransitionDeps } from './transition.ts'

/** How many attempts of one run this process executes at once. */
const abreast = 100
/** How long a wake-up waits for the calls of its run. Longer calls continue under their leases, so that they do not delay other wake-ups. */
const patienceMs = 50
/** A wake-up that is due within this time also gets a timer in this process, which fires on time. Later ones rely on the stored wake-up alone. */
const soonMs = 60_000
/** How long stopping waits for calls under way. */
const stopMs = 10_000

export interface EngineDeps extends TransitionDeps {
  readonly database: Database
  readonly wakeUps: WakeUps
  readonly execution: Execution
  readonly kv: Kv
  readonly outputs: Outputs
  readonly limits: Pick<TenantLimits, 'of' | 'pace'> | undefined
  /** Makes the output of a run whose nodes have all ended. */
  conclude(key: RunKey, settings: RunSettings): Promise<Conclusion>
  readonly metrics: WorkflowMetrics
  readonly log: FastifyBaseLogger
  readonly stopping: AbortSignal
}

/** The channel on which readers of a run learn that it has new events. */
export const runChannel = (tenantId: string, runId: string): string => `workflow:${tenantId}:${runId}`

interface Step {
  readonly outcomes: readonly Outcome[]
  /** Nodes whose attempts this process executes. Those that end during the step are stored by the next step. */
  readonly mine: readonly string[]
  readonly most: number
  /** A wake-up came for the run, so the step also looks for due nodes and for nodes that another process left. */
  readonly look: boolean
}

interface Stepped {
  readonly attempts: readonly Attempt[]
  readonly leasedForMs: number | undefined
  readonly more: boolean
  /** Set when all nodes have ended: the settings from which the output of the run has to be made. */
  readonly concludes?: RunSettings
}

/**
 * Advances runs: claims ready nodes, executes the attempts, stores their outcomes. All state is in the tables, so any number of processes work at
 * once; wake-ups tell them which runs to check.
 */
export class Engine {
  readonly #deps: EngineDeps
  /** Names this process in leases. */
  readonly #owner = randomUUID()
  readonly #drivers = new Map<string, Driver>()
  readonly #timers = new Set<NodeJS.Timeout>()
  readonly #room: Room
  readonly #offers = new Offers()
  #renewing: NodeJS.Timeout | undefined
  constructor(deps: EngineDeps) {
    this.#deps = deps
    this.#room = new Room(deps.limits, (tenantId, runId) => this.#hasRoom(tenantId, runId))
  }

  start(): void {
    const renew = () => void renewLeases(this.#deps, this.#owner, this.#drivers.values())
    this.#renewing = setInterval(renew, leaseMs / 3).unref()
  }
  /** Claims nothing new and gives running calls `stopMs` to end. Other processes take over the rest when the leases expire. */
  async stop(): Promise<void> {
    clearInterval(this.#renewing)
    const waiting = this.#room.close()
    for (const timer of this.#timers) clearTimeout(timer)
    for (const driver of this.#drivers.values()) driver.wake()
    const late = setTimeout(() => {
      for (const { underWay } of this.#drivers.values()) for (const one of underWay.values()) one.abort()
    }, stopMs)
    // A driver whose last step failed has stopped too, so its rejection is ignored.
    await Promise.allSettled([...this.#drivers.values()].map(({ done }) => done))
    clearTimeout(late)
    // What waited for room here goes on elsewhere at once. Should the database be away, the offers of these runs come later.
    const wakes = waiting.map(({ tenantId, runId }) => wakeOf(tenantId, runId))
    await this.#deps.wakeUps
      .send(wakes)
      .catch((err: unknown) => this.#deps.log.warn({ err }, 'runs were not handed on'))
  }

  /** The number of running calls in this process. */
  callsOf(tenantId: string): number {
    return this.#room.usedBy(tenantId)
  }

  /**
   * Advances a run as long as this process can do something for it. Resolves when nothing is left to do, or `patienceMs` after the run began to wait
   * for calls.
   */
  async drive(tenantId: string, runId: string): Promise<void> {
    let driver = this.#drivers.get(keyOf(tenantId, runId))
    if (driver) {
      driver.again = true
      driver.wake()
    } else {
      driver = this.#carry(newDriver(tenantId, runId))
    }
    const rest = new AbortController()
    const rests = await Promise.race([
      driver.done.then(() => true),
      driver.calls.promise.then(() => sleep(patienceMs, false, { signal: rest.signal, ref: false })).catch(() => true),
    ])
    rest.abort()
    // The wake-up ends before the calls do. A second wake-up continues the run after the leases expire, in case this process dies.
    if (!rests) await this.#guard(tenantId, runId, leaseMs)
  }

  /** Takes up a run of which some process has more ready nodes than room, if this process has room. */
  async offered(tenantId: string, runId: string): Promise<void> {
    // A driver claims what this process has room for, and offers the rest itself.
    if (this.#drivers.has(keyOf(tenantId, runId))) return
    await (this.#room.of(tenantId) > 0 ? this.drive(tenantId, runId) : this.#waitForRoom(tenantId, runId))
  }
  #hasRoom(tenantId: string, runId: string): void {
    const driver = this.#drivers.get(keyOf(tenantId, runId))
    if (!driver) return this.#soon({ tenantId, what: { runId }, afterMs: 0 })
    // A driver without attempts is about to end, and ends only if nothing came meanwhile.
    driver.again ||= driver.underWay.size === 0
    driver.wake()
  }

  /** Reserves room for the first nodes of a new run. The caller must begin that many nodes or give the rest back. */
  take(tenantId: string, wanted: number): FirstClaim {
    const most = this.#deps.stopping.aborted ? 0 : this.#room.take(tenantId, Math.min(wanted, abreast))
    return { owner: this.#owner, most }
  }
  give(tenantId: string, count: number): void {
    this.#room.give(tenantId, count)
  }
  /** Executes the first nodes of a run. The statement that stored the run has already claimed them for this process. */
  begin(tenantId: string, begun: Begun, nowMs: number): void {
    const { runId, rootId, depth, guard } = begun
    const driver = newDriver(tenantId, runId, guard)
    for (const one of claimsOf(begun, nowMs)) this.#begin(driver, { ...one, tenantId, runId, depth, rootId })
    this.#carry(driver)
  }
  #carry(driver: Driver): Driver {
    this.#drivers.set(keyOf(driver.tenantId, driver.runId), driver)
    driver.done = this.#carryOn(driver).finally(() => this.#drop(driver))
    // Callers that await `done` get the failure. This handler keeps a failure that nobody awaits from crashing the process.
    driver.done.catch(() => {})
    return driver
  }

  /**
   * Runs `change` on a run in one transaction, for the engine or for a request. Stores the wake-ups and events of the change with it. Undefined:
   * there is no such run.
   */
  async transit<T>(
    tenantId: string,
    runId: string,
    change: (transition: Transition, tx: TenantTx) => Promise<T>,
    opening: Opening = {},
  ): Promise<T | undefined> {
    const { database, kv } = this.#deps
    const made = await database.tenant(tenantId, async (tx) => {
      const transition = await Transition.of(tx, runId, this.#deps, opening)
      if (!transition) return undefined
      const result = await change(transition, tx)
      const moved = await transition.finish()
      const { wakeUps } = this.#deps
      for (const one of await wakeUps.statements(transition.notices.wakes)) tx.atEnd(one)
      const needless = opening.guard !== undefined && !transition.open ? [opening.guard] : []
      for (const one of await wakeUps.takenBack(needless)) tx.atEnd(one)
      return { result, moved, wakes: transition.notices.wakes, run: transition.run }
    })
    if (!made) return undefined
    if (made.moved) kv.publish([runChannel(tenantId, runId)], '')
    for (const wake of made.wakes) this.#soon(wake)
    if (made.moved) this.#deps.metrics.moved(made.run.status)
    return made.result
  }

  async #carryOn(driver: Driver): Promise<void> {
    const { tenantId, runId, underWay } = driver
    const { stopping } = this.#deps
    if (underWay.size > 0) await this.#called(driver)
    for (;;) {
      const look = driver.again
      driver.again = false
      const outcomes = driver.outcomes
      driver.outcomes = []
      const mine = [...underWay.keys()]
      const woken = new Promise<void>((resolve) => (driver.wake = resolve))
      const most = stopping.aborted ? 0 : this.#room.take(tenantId, abreast - underWay.size)
      // A step with outcomes is retried, so that no outcome of a call is lost while the database is unreachable for a moment.
      let tries = 0
      // A step that failed may have been committed, with claims that this process never learned of. A retry therefore looks for due nodes (`look`).
      const stepped = await retry(() => this.#step(driver, { outcomes, mine, most, look: look || tries++ > 0 }), {
        firstMs: 100,
        longestMs: 5_000,
        withinMs: outcomes.length > 0 ? 120_000 : 0,
        mayPass: (err) => {
          this.#deps.log.warn({ err, runId }, 'a step of a workflow run failed')
          return true
        },
      }).catch((err: unknown) => {
        this.#room.give(tenantId, most)
        throw err
      })
      this.#room.give(tenantId, most - stepped.attempts.length)
      if (look || stepped.leasedForMs) driver.leasedUntil = performance.now() + (stepped.leasedForMs ?? Infinity)
      if (!stepped.more) this.#offers.over(keyOf(tenantId, runId))
      for (const attempt of stepped.attempts) this.#begin(driver, attempt)
      if (stepped.concludes) await this.#conclude(driver, stepped.concludes)
      if (driver.outcomes.length > 0) continue
      if (underWay.size === 0) {
        // More nodes may be ready: continue if there is room, else wait for it. Another process takes the run if this one stops or stays busy.
        if (stepped.more && this.#room.of(tenantId) > 0 && !stopping.aborted) continue
        if (stepped.more) await this.#waitForRoom(tenantId, runId)
        if (driver.leasedUntil < Infinity && !driver.again)
          await this.#guard(tenantId, runId, driver.leasedUntil - performance.now())
        // No other code runs between this check and the return. A wake-up has set `again` before it, or finds no driver and starts a new one.
        if (!driver.again || stopping.aborted) return this.#drop(driver)
        continue
      }
      if (driver.again) continue
      if (stepped.more && underWay.size < abreast && !stopping.aborted) {
        // `take` gives out only a part of the free room, so there may be room for another claim.
        if (this.#room.of(tenantId) > 0) continue
        this.#room.wait(tenantId, runId)
      }
      await this.#called(driver, woken)
    }
  }
  /** Waits for calls of a run, or for a wake-up. */
  async #called(driver: Driver, woken = new Promise<void>((resolve) => (driver.wake = resolve))): Promise<void> {
    driver.calls.resolve()
    await woken
    // Waits one turn of the event loop, so that one step stores all outcomes that arrive together.
    await turn()
  }

  async #waitForRoom(tenantId: string, runId: string): Promise<void> {
    if (this.#deps.stopping.aborted) return this.#guard(tenantId, runId, 500)
    this.#room.wait(tenantId, runId)
    await this.#deps.wakeUps.send([offerOf(tenantId, runId, this.#offers.later(keyOf(tenantId, runId)))])
  }

  #drop(driver: Driver): void {
    const key = keyOf(driver.tenantId, driver.runId)
    if (this.#drivers.get(key) === driver) this.#drivers.delete(key)
  }

  async #step({ tenantId, runId, guard }: Driver, { outcomes, mine, most, look }: Step): Promise<Stepped> {
    let held: Transition | undefined
    // Nodes whose outcomes this step stores are not due, although their attempts are no longer under way.
    const underWay = [...mine, ...outcomes.map(({ node }) => node)]
    const owner = this.#owner
    const opening = { outcomes, due: look ? { owner, underWay } : undefined, claim: { owner, most }, guard }
    const step = async (transition: Transition): Promise<Stepped> => {
      held = transition
      const { run } = transition
      if (!transition.open) return nothing
      if (run.gone) return (await transition.endRun('cancelled'), nothing)
      await transition.takeDue()
      // A failed node holds the run up, even one that failed in this very step: claim nothing.
      if (run.failed > 0) return { ...nothing, leasedForMs: transition.leasedForMs }
      const claimed = await transition.claim(owner, most, () => this.#offers.take(keyOf(tenantId, runId)))
      const of = { tenantId, runId, depth: run.depth, rootId: run.rootRun }
      const attempts = claimed.map((one): Attempt => ({ ...one, ...of }))
      return { attempts, leasedForMs: transition.leasedForMs, more: claimed.length >= most && run.unfinished > 0 }
    }
    const stepped = await this.transit(tenantId, runId, step, opening)
    return { ...(stepped ?? nothing), ...(held?.concludes ? { concludes: held.run.settings } : {}) }
  }

  /** Makes the output of a run and ends the run. If this process dies meanwhile, the next process that is woken repeats both. */
  async #conclude({ tenantId, runId }: Driver, settings: RunSettings): Promise<void> {
    const made = await this.#deps.conclude({ tenantId, runId }, settings)
    await this.transit(tenantId, runId, async (transition) => transition.conclude(made))
  }

  #begin(driver: Driver, attempt: Attempt): void {
    const abort = new AbortController()
    const { underWay } = driver
    underWay.set(attempt.id, abort)
    const began = performance.now()
    const end = (outcome: Outcome): void => {
      driver.outcomes.push(outcome)
      // The room is given back before the outcome is stored, so that whoever sees the outcome also finds the room.
      this.#room.give(attempt.tenantId, 1)
      underWay.delete(attempt.id)
      driver.wake()
      this.#deps.metrics.attempted(attempt.spec.type, outcome, performance.now() - began)
    }
    const turn = this.#room.turn(attempt.tenantId, abort.signal)
    turn
      .then(() => this.#deps.execution.make(attempt, abort.signal))
      .then(end, (err: unknown) => {
        if (!abort.signal.aborted)
          this.#deps.log.warn({ err, runId: attempt.runId, node: attempt.id }, 'an attempt was lost')
        // `lost` has the attempt repeated by some process. It changes nothing for an attempt that was taken over or cancelled meanwhile.
        end({ node: attempt.id, attempt: attempt.attempt, kind: 'lost' })
      })
  }

  /** Aborts the attempts of a cancelled run that this process executes. */
  leave(tenantId: string, runId: string): void {
    const driver = this.#drivers.get(keyOf(tenantId, runId))
    for (const abort of driver?.underWay.values() ?? []) abort.abort()
  }

  async #guard(tenantId: string, runId: string, afterMs: number): Promise<void> {
    await this.#deps.wakeUps.send([guardOf(tenantId, runId, Math.max(0, afterMs))])
  }
  /** Processes look for later wake-ups only every few seconds. Timers make the wake-ups of this process come on time. */
  #soon({ tenantId, what, afterMs }: Pick<Wake, 'tenantId' | 'what' | 'afterMs'>): void {
    const { runId } = what
    if (afterMs === undefined || afterMs > soonMs || runId === undefined || this.#deps.stopping.aborted) return
    const timer = setTimeout(() => {
      this.#timers.delete(timer)
      this.drive(tenantId, runId).catch((err: unknown) =>
        this.#deps.log.warn({ err }, 'a workflow run could not be continued'),
      )
    }, afterMs + 5)
    this.#timers.add(timer.unref())
  }
}

const keyOf = (tenantId: string, runId: string): string => `${tenantId}\n${runId}`

const nothing = { attempts: [], leasedForMs: undefined, more: false } as const
