import { setTimeout as sleep } from 'node:timers/promises'
import type { TenantLimits } from '#contracts/limits'
import { Pace } from '#kit'

/** Attempts that a process makes at once. */
const mostOfAll = 2_000
/** So long room is left to the runs that gave it, before those that wait for some are told. */
const tellAfterMs = 10
/** Attempts pass as writes of the API do: at this many times the average that `writesPerMinute` allows, and so many at once. */
const paceFactor = 6
const atOnce = 100

/**
 * Room for the attempts of one process. Each tenant has as much of it as its limit `workflowCalls` says, however many runs it has begun,
 * so that calls which hang leave room for those of others; and they take turns, so that a graph of thousands of nodes, which is one
 * request, leaves the process to others as well.
 */
export class Room {
  readonly #limits: Pick<TenantLimits, 'of'> | undefined
  readonly #onRoom: (tenantId: string, runId: string) => void
  readonly #taken = new Map<string, number>()
  /** Runs by tenant that have more to do than there was room for. */
  readonly #waiting = new Map<string, Set<string>>()
  readonly #pace = new Pace({ atOnce, longestMs: Infinity })
  #all = 0
  #telling: NodeJS.Timeout | undefined

  constructor(limits: Pick<TenantLimits, 'of'> | undefined, onRoom: (tenantId: string, runId: string) => void) {
    this.#limits = limits
    this.#onRoom = onRoom
  }

  usedBy(tenantId: string): number {
    return this.#taken.get(tenantId) ?? 0
  }
  /** How much there is left for a tenant. */
  of(tenantId: string): number {
    const ofTenant = this.#limits?.of(tenantId).workflowCalls ?? mostOfAll
    return Math.max(0, Math.min(mostOfAll - this.#all, ofTenant - this.usedBy(tenantId)))
  }
  /** Takes as much as is wanted, or a part of what there is: whoever claims at the same moment finds some as well. */
  take(tenantId: string, wanted: number): number {
    const part = Math.min(wanted, Math.ceil(this.of(tenantId) / 4))
    this.#add(tenantId, part)
    return part
  }
  /** Resolves when it is the turn of an attempt that has room. */
  async turn(tenantId: string, signal: AbortSignal): Promise<void> {
    const perMinute = this.#limits?.of(tenantId).writesPerMinute ?? Infinity
    const waitMs = this.#pace.turnOf(tenantId, 60_000 / (Math.max(1, perMinute) * paceFactor))!
    if (waitMs > 0) await sleep(waitMs, undefined, { signal, ref: false })
  }
  give(tenantId: string, count: number): void {
    this.#add(tenantId, -count)
    if (count > 0 && this.#waiting.size > 0) this.#telling ??= setTimeout(() => this.#tell(), tellAfterMs).unref()
  }
  /** The run is told when there is room for its tenant. */
  wait(tenantId: string, runId: string): void {
    this.#waiting.set(tenantId, (this.#waiting.get(tenantId) ?? new Set()).add(runId))
  }
  close(): void {
    clearTimeout(this.#telling)
    this.#waiting.clear()
  }

  #add(tenantId: string, count: number): void {
    const taken = this.usedBy(tenantId) + count
    this.#all += count
    if (taken > 0) this.#taken.set(tenantId, taken)
    else this.#taken.delete(tenantId)
  }
  /** As many runs of each tenant as there is room for one attempt of each. */
  #tell(): void {
    this.#telling = undefined
    for (const [tenantId, runs] of this.#waiting) {
      const told = [...runs].slice(0, this.of(tenantId))
      for (const runId of told) {
        runs.delete(runId)
        this.#onRoom(tenantId, runId)
      }
      if (runs.size === 0) this.#waiting.delete(tenantId)
    }
  }
}
