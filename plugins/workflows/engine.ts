import { randomUUID } from 'node:crypto'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Database, TenantTx } from '#contracts/database'
import type { Wake, WakeUps } from '#contracts/jobs'
import type { Kv } from '#contracts/kv'
import type { TenantLimits } from '#contracts/limits'
import { retry } from '#kit'
import type { FirstClaim } from './claims.store.ts'
import { type Begun, claimsOf, guardOf } from './creation.store.ts'
import { type Driver, newDriver, renewLeases } from './driver.ts'
import type { Attempt, Execution } from './execution.ts'
import type { WorkflowMetrics } from './metrics.ts'
import { leaseMs } from './nodes.store.ts'
import type { Outcome } from './outcome.ts'
import type { Outputs, RunKey } from './outputs.ts'
import type { Opening } from './opening.ts'
import { Room } from './room.ts'
import type { Conclusion } from './run-output.ts'
import type { RunSettings } from './schema.ts'
import { Transition, type TransitionDeps } from './transition.ts'

/** Attempts at nodes of one run that this process makes at once. */
const abreast = 100
/** A run without room here is offered to all processes after this time; here it continues as soon as there is room. */
const noRoomMs = 5_000
/** How long a wake-up waits for calls of its run; longer calls continue by themselves, under their leases, and delay no other wake-ups. */
const patienceMs = 50
/** Within this a run is looked at by a timer of this process, at the very moment; later than that by a wake-up alone. */
const soonMs = 60_000
/** How long stopping waits for calls under way. */
const stopMs = 10_000

export interface EngineDeps extends TransitionDeps {
  readonly database: Database
  readonly wakeUps: WakeUps
  readonly execution: Execution
  readonly kv: Kv
  readonly outputs: Outputs
  readonly limits: Pick<TenantLimits, 'of'> | undefined
  /** The output of a run whose nodes are over. */
  conclude(key: RunKey, settings: RunSettings): Promise<Conclusion>
  readonly metrics: WorkflowMetrics
  readonly log: FastifyBaseLogger
  readonly stopping: AbortSignal
}

/** What readers of a run's events subscribe to. */
export const runChannel = (tenantId: string, runId: string): string => `workflow:${tenantId}:${runId}`

interface Step {
  readonly outcomes: readonly Outcome[]
  /** Attempts that are under way here, or whose outcomes are stored next. */
  readonly mine: readonly string[]
  readonly most: number
  /** Somebody was woken for it: something may be due, or left by another process. */
  readonly look: boolean
}

interface Stepped {
  readonly attempts: readonly Attempt[]
  readonly leasedForMs: number | undefined
  readonly more: boolean
  /** Its nodes are over, and its output is made from these. */
  readonly concludes?: RunSettings
}

/**
 * Advances runs: claims ready nodes, makes the attempts, stores their outcomes. Its whole state is in the tables, and any number of
 * processes work at once; wake-ups tell them which runs to check.
 */
export class Engine {
  readonly #deps: EngineDeps
  /** Names this process in leases. */
  readonly #owner = randomUUID()
  readonly #drivers = new Map<string, Driver>()
  readonly #timers = new Set<NodeJS.Timeout>()
  readonly #room: Room
  #renewing: NodeJS.Timeout | undefined
  constructor(deps: EngineDeps) {
    this.#deps = deps
    this.#room = new Room(deps.limits, (tenantId, runId) => this.#soon({ tenantId, what: { runId }, afterMs: 0 }))
  }

  start(): void {
    const renew = () => void renewLeases(this.#deps, this.#owner, this.#drivers.values())
    this.#renewing = setInterval(renew, leaseMs / 3).unref()
  }
  /** Starts nothing new, and lets running calls end for a while. Other processes take over the rest when its leases expire. */
  async stop(): Promise<void> {
    clearInterval(this.#renewing)
    this.#room.close()
    for (const timer of this.#timers) clearTimeout(timer)
    for (const driver of this.#drivers.values()) driver.wake()
    const late = setTimeout(() => {
      for (const { underWay } of this.#drivers.values()) for (const one of underWay.values()) one.abort()
    }, stopMs)
    // One whose last step failed is over as well.
    await Promise.allSettled([...this.#drivers.values()].map(({ done }) => done))
    clearTimeout(late)
  }

  /** The number of running calls in this process. */
  callsOf(tenantId: string): number {
    return this.#room.usedBy(tenantId)
  }

  /** Advances a run as long as there is something to do here. Resolves when it rests, or after a moment. */
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
    // The wake-up is over then: should this process die, another one comes when the leases are over.
    if (!rests) await this.#guard(tenantId, runId, leaseMs)
  }

  /** How many nodes of a new run this process would begin, which are to be begun or given back. */
  take(tenantId: string): FirstClaim {
    const most = this.#deps.stopping.aborted ? 0 : this.#room.take(tenantId, abreast)
    return { owner: this.#owner, most }
  }
  give(tenantId: string, count: number): void {
    this.#room.give(tenantId, count)
  }
  /** Executes the first nodes of a run, which were claimed for this process by whoever has stored it. */
  begin(tenantId: string, begun: Begun, nowMs: number): void {
    const { runId, rootId, depth, guard } = begun
    const driver = newDriver(tenantId, runId, guard)
    for (const one of claimsOf(begun, nowMs)) this.#begin(driver, { ...one, tenantId, runId, depth, rootId })
    this.#carry(driver)
  }
  #carry(driver: Driver): Driver {
    this.#drivers.set(keyOf(driver.tenantId, driver.runId), driver)
    driver.done = this.#carryOn(driver).finally(() => this.#drop(driver))
    // Whoever waits for it hears of a failure; it is no crash when nobody does.
    driver.done.catch(() => {})
    return driver
  }

  /**
   * One transition of a run, by whatever `change` does to it: from here or from a request. Undefined: there is no such run. Wake-ups
   * and events come to be with it.
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
      // Outcomes of calls must not be lost while the database cannot be reached for a moment.
      let tries = 0
      // A failed step may have been stored all the same, with claims that this process does not know.
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
      for (const attempt of stepped.attempts) this.#begin(driver, attempt)
      if (stepped.concludes) await this.#conclude(driver, stepped.concludes)
      if (driver.outcomes.length > 0) continue
      if (underWay.size === 0) {
        // Work without room now is done next, by another process if this one stops or is busy.
        if (stepped.more && this.#room.of(tenantId) > 0 && !stopping.aborted) continue
        if (stepped.more) await this.#waitForRoom(tenantId, runId)
        if (stepped.leasedForMs !== undefined && !driver.again) await this.#guard(tenantId, runId, stepped.leasedForMs)
        // From here to the return nobody else has a turn: a wake-up is heard, or finds no driver.
        if (!driver.again || stopping.aborted) return this.#drop(driver)
        continue
      }
      if (driver.again) continue
      if (stepped.more && underWay.size < abreast && !stopping.aborted) {
        // What was claimed is a part of the room that there was.
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
    // What ends together is stored together.
    await turn()
  }

  async #waitForRoom(tenantId: string, runId: string): Promise<void> {
    this.#room.wait(tenantId, runId)
    await this.#guard(tenantId, runId, this.#deps.stopping.aborted ? 500 : noRoomMs)
  }

  #drop(driver: Driver): void {
    const key = keyOf(driver.tenantId, driver.runId)
    if (this.#drivers.get(key) === driver) this.#drivers.delete(key)
  }

  async #step({ tenantId, runId, guard }: Driver, { outcomes, mine, most, look }: Step): Promise<Stepped> {
    let held: Transition | undefined
    // What was under way until now is about to be stored: it is not due.
    const underWay = [...mine, ...outcomes.map(({ node }) => node)]
    const owner = this.#owner
    const opening = { outcomes, due: look ? { owner, underWay } : undefined, claim: { owner, most }, guard }
    const step = async (transition: Transition): Promise<Stepped> => {
      held = transition
      const { run } = transition
      if (!transition.open) return nothing
      if (run.gone) return (await transition.endRun('cancelled'), nothing)
      await transition.takeDue()
      // A failure of this very step holds the run up, too.
      if (run.failed > 0) return { ...nothing, leasedForMs: transition.leasedForMs }
      const claimed = await transition.claim(owner, most)
      const of = { tenantId, runId, depth: run.depth, rootId: run.rootRun }
      const attempts = claimed.map((one): Attempt => ({ ...one, ...of }))
      return { attempts, leasedForMs: transition.leasedForMs, more: claimed.length >= most && run.unfinished > 0 }
    }
    const stepped = await this.transit(tenantId, runId, step, opening)
    return { ...(stepped ?? nothing), ...(held?.concludes ? { concludes: held.run.settings } : {}) }
  }

  /** Makes the output of a run and ends it. If this process dies meanwhile, the next one that is woken does the same. */
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
      // Its room is free before its outcome is visible.
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
        // Somebody makes it again; of one that was taken or cancelled meanwhile it says nothing.
        end({ node: attempt.id, attempt: attempt.attempt, kind: 'lost' })
      })
  }

  /** Leaves what is under way here of a run that was cancelled. */
  leave(tenantId: string, runId: string): void {
    const driver = this.#drivers.get(keyOf(tenantId, runId))
    for (const abort of driver?.underWay.values() ?? []) abort.abort()
  }

  async #guard(tenantId: string, runId: string, afterMs: number): Promise<void> {
    await this.#deps.wakeUps.send([guardOf(tenantId, runId, afterMs)])
  }
  /** Wake-ups for later are looked for every few seconds: those of this process come to the moment. */
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
