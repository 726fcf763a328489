import type { RunStore } from '#contracts/run-store'
import type { Rows } from './rows.ts'

type Counts = Pick<RunStore, 'holdRuns' | 'countHeld' | 'countLogBytes' | 'countSessions' | 'countWaiting'>

/** What tenants have of what their limits bound, in a process that is the only one. */
export class TenantUse implements Counts {
  readonly #rows: Rows
  readonly #held = new Map<string, number>()
  #logged = { day: '', bytes: new Map<string, number>() }

  constructor(rows: Rows) {
    this.#rows = rows
  }

  async holdRuns(tenantId: string, wanted: number, max: number): Promise<number> {
    const held = Math.min(wanted, max)
    if (held > 0) this.#held.set(tenantId, held)
    else this.#held.delete(tenantId)
    return held
  }
  async countHeld(tenantId: string): Promise<number> {
    return this.#held.get(tenantId) ?? 0
  }
  async countLogBytes(tenantId: string, bytes: number): Promise<number> {
    const day = new Date().toISOString().slice(0, 10)
    if (this.#logged.day !== day) this.#logged = { day, bytes: new Map() }
    const sum = (this.#logged.bytes.get(tenantId) ?? 0) + bytes
    this.#logged.bytes.set(tenantId, sum)
    return sum
  }
  async countSessions(tenantId: string, most: number): Promise<number> {
    const open = this.#rows.sessions(tenantId).filter(({ dto }) => dto.status !== 'shutdown')
    return Math.min(open.length, most)
  }
  async countWaiting(tenantId: string): Promise<number> {
    return this.#rows.waitingOf(tenantId)
  }
}
