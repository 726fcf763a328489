import { tenantKey } from '#contracts/ids'

/** How many sessions are looked at concurrently. */
const together = 16
/** How many of them are one tenant's at most: a look may wait for seconds, as for a run that is interrupted. */
const ofTenant = 4

/**
 * The sessions whose queue may advance, served round-robin by tenant, so that a tenant with thousands of sessions delays nobody. A session that is
 * added again while it is looked at is looked at once more.
 */
export class FairQueue {
  readonly #look: (tenantId: string, sessionId: string) => Promise<void>
  /** The waiting sessions of each tenant. The first tenant in the map is served next. */
  readonly #waiting = new Map<string, Set<string>>()
  /** The sessions that are being looked at. True: the session was added again meanwhile. */
  readonly #looking = new Map<string, boolean>()
  /** How many sessions of each tenant are looked at. */
  readonly #busy = new Map<string, number>()

  /** `look` never rejects. */
  constructor(look: (tenantId: string, sessionId: string) => Promise<void>) {
    this.#look = look
  }

  add(tenantId: string, sessionId: string): void {
    const key = tenantKey(tenantId, sessionId)
    if (this.#looking.has(key)) return void this.#looking.set(key, true)
    const sessions = this.#waiting.get(tenantId)
    if (sessions) return void sessions.add(sessionId)
    this.#waiting.set(tenantId, new Set([sessionId]))
    this.#fill()
  }

  #fill(): void {
    // Whoever moves to the end of the line comes again in this loop.
    for (const [tenantId, sessions] of this.#waiting) {
      if (this.#looking.size >= together) return
      if (this.#busyOf(tenantId) >= ofTenant) continue
      const sessionId: string = sessions.values().next().value!
      sessions.delete(sessionId)
      this.#waiting.delete(tenantId)
      if (sessions.size > 0) this.#waiting.set(tenantId, sessions)
      void this.#run(tenantId, sessionId)
    }
  }
  async #run(tenantId: string, sessionId: string): Promise<void> {
    const key = tenantKey(tenantId, sessionId)
    this.#looking.set(key, false)
    this.#busy.set(tenantId, this.#busyOf(tenantId) + 1)
    await this.#look(tenantId, sessionId)
    const again = this.#looking.get(key)
    this.#looking.delete(key)
    const busy = this.#busyOf(tenantId) - 1
    if (busy > 0) this.#busy.set(tenantId, busy)
    else this.#busy.delete(tenantId)
    if (again) this.add(tenantId, sessionId)
    this.#fill()
  }
  #busyOf(tenantId: string): number {
    return this.#busy.get(tenantId) ?? 0
  }
}
