import type { TenantLimits, WaitForTurn } from '#contracts/limits'
import { ahead } from '#kit'

/** How many attempts a process executes at once, of all tenants together. */
const mostOfAll = 2_000
/** The runs that freed room may take it again during this time. After that, waiting runs are told. */
const tellAfterMs = 10

/**
 * Room for the attempts of one process. Each tenant has as much as its limit `workflowCalls` says, however many runs it has begun, so that its
 * hanging calls leave room for other tenants. Attempts are also paced per tenant, like writes of the API: a graph of thousands of nodes is one request and must not occupy
 * the process.
 */
export class Room {
  readonly #limits: Pick<TenantLimits, 'of'> | undefined
  readonly #onRoom: (tenantId: string, runId: string) => void
  readonly #taken = new Map<string, number>()
  /** Runs that wait for room, by tenant. */
  readonly #waiting = new Map<string, Set<string>>()
  readonly #turn: WaitForTurn | undefined
  #all = 0
  #telling: NodeJS.Timeout | undefined

  constructor(
    limits: Pick<TenantLimits, 'of' | 'pace'> | undefined,
    onRoom: (tenantId: string, runId: string) => void,
  ) {
    this.#limits = limits
    this.#turn = limits?.pace(ahead.atOnce)
    this.#onRoom = onRoom
  }

  usedBy(tenantId: string): number {
    return this.#taken.get(tenantId) ?? 0
  }
  /** How many more attempts a tenant may begin now. */
  of(tenantId: string): number {
    const ofTenant = this.#limits?.of(tenantId).workflowCalls ?? mostOfAll
    return Math.max(0, Math.min(mostOfAll - this.#all, ofTenant - this.usedBy(tenantId)))
  }
  /** Takes the wanted room, but at most a quarter of what is left, so that others who claim at the same moment find some as well. */
  take(tenantId: string, wanted: number): number {
    const part = Math.min(wanted, Math.ceil(this.of(tenantId) / 4))
    this.#add(tenantId, part)
    return part
  }
  /** Resolves when an attempt that has room may begin, at the pace of its tenant. */
  async turn(tenantId: string, signal: AbortSignal): Promise<void> {
    await this.#turn?.(tenantId, signal)
  }
  give(tenantId: string, count: number): void {
    this.#add(tenantId, -count)
    if (count > 0 && this.#waiting.size > 0) this.#telling ??= setTimeout(() => this.#tell(), tellAfterMs).unref()
  }
  /** Registers a run that is told as soon as its tenant has room. */
  wait(tenantId: string, runId: string): void {
    this.#waiting.set(tenantId, (this.#waiting.get(tenantId) ?? new Set()).add(runId))
  }
  /** Tells nobody any more. Returns the runs that wait. */
  close(): { readonly tenantId: string; readonly runId: string }[] {
    clearTimeout(this.#telling)
    const left = [...this.#waiting].flatMap(([tenantId, runs]) => [...runs].map((runId) => ({ tenantId, runId })))
    this.#waiting.clear()
    return left
  }

  #add(tenantId: string, count: number): void {
    const taken = this.usedBy(tenantId) + count
    this.#all += count
    if (taken > 0) this.#taken.set(tenantId, taken)
    else this.#taken.delete(tenantId)
  }
  /** Tells as many runs of each tenant as there is room for, counted as one attempt per run. */
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
