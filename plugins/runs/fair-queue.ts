import { tenantKey } from '#contracts/ids'

/** Sessions that are looked at together. */
const together = 16

/**
 * The sessions whose line may move on, in turns: one of each tenant, then the next of each, so that a tenant with thousands of
 * them delays nobody. A session that is named again while it is looked at is looked at once more.
 */
export class FairQueue {
  readonly #look: (tenantId: string, sessionId: string) => Promise<void>
  /** The sessions of each tenant that wait; the tenant whose turn is next comes first. */
  readonly #waiting = new Map<string, Set<string>>()
  /** Those that are looked at; true when one was named again meanwhile. */
  readonly #looking = new Map<string, boolean>()

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
    while (this.#looking.size < together) {
      const [turn] = this.#waiting
      if (!turn) return
      const [tenantId, sessions] = turn
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
    await this.#look(tenantId, sessionId)
    const again = this.#looking.get(key)
    this.#looking.delete(key)
    if (again) this.add(tenantId, sessionId)
    this.#fill()
  }
}
