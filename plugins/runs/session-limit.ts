import { overLimit, type TenantLimits } from '#contracts/limits'
import type { RunStore } from '#contracts/run-store'

/** What this process knows about the sessions of one tenant. */
interface Counted {
  /** Sessions at the last count, sessions begun here since then, and those of them that may not be stored yet. */
  sessions: number
  begun: number
  storing: number
  counting: Promise<void> | undefined
  /** Milliseconds since the epoch. */
  countedAt: number
}

/** Sessions are counted again after 1/20 of those left, since other processes begin some, too. */
const leftPart = 20
const askAgainMs = 200
const countEveryMs = 600_000

/** Enforces how many sessions each tenant may have. Counting them is slow, so most are begun by what is known of the last count. */
export class SessionLimit {
  readonly #store: Pick<RunStore, 'countSessions'>
  readonly #limits: TenantLimits | undefined
  readonly #counted = new Map<string, Counted>()

  /** Undefined limits allow everything. */
  constructor(store: Pick<RunStore, 'countSessions'>, limits: TenantLimits | undefined) {
    this.#store = store
    this.#limits = limits
  }

  /** Refuses a new session when the tenant already has as many as its limit allows. The caller then says when the session is stored, or will not be. */
  async admit(tenantId: string): Promise<void> {
    if (!this.#limits) return
    const counted = this.#of(tenantId)
    const { sessions: most } = this.#limits.of(tenantId)
    const isFull = (): boolean => counted.sessions + counted.begun >= most
    const age = Date.now() - counted.countedAt
    const unseen = Math.max(1, Math.floor((most - counted.sessions) / leftPart))
    const mustCount = isFull() ? counted.begun > counted.storing || age > askAgainMs : counted.begun >= 2 * unseen
    if (mustCount) await this.#count(tenantId, counted, most)
    // Count without delaying the start: a tenant may have very many sessions.
    else if (age > countEveryMs || counted.begun >= unseen) void this.#count(tenantId, counted, most).catch(() => {})
    if (isFull()) throw overLimit('sessions', most)
    counted.begun++
    counted.storing++
  }
  /** Called when a session that was admitted is stored, or will not be. */
  stored(tenantId: string): void {
    if (this.#limits) this.#of(tenantId).storing--
  }
  /** Forgets tenants whose count is old. */
  sweep(): void {
    for (const [tenantId, { storing, countedAt }] of this.#counted)
      if (storing === 0 && Date.now() > countedAt + countEveryMs) this.#counted.delete(tenantId)
  }

  #of(tenantId: string): Counted {
    let counted = this.#counted.get(tenantId)
    if (counted) return counted
    counted = { sessions: 0, begun: 0, storing: 0, counting: undefined, countedAt: 0 }
    this.#counted.set(tenantId, counted)
    return counted
  }
  #count(tenantId: string, counted: Counted, most: number): Promise<void> {
    const count = async (): Promise<void> => {
      // The count includes these for certain. Those on their way to the store may be missing, so they stay counted here.
      const stored = counted.begun - counted.storing
      counted.countedAt = Date.now()
      counted.sessions = await this.#store.countSessions(tenantId, most)
      counted.begun -= stored
    }
    return (counted.counting ??= count().finally(() => (counted.counting = undefined)))
  }
}
