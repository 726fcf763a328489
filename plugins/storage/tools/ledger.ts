import type { ObjectWrite, WrittenObjects } from '#contracts/object-writes'

/** Writes that no conductor has heard of yet; beyond it the oldest runs are forgotten, and the nightly count mends the sum. */
const mostKept = 20_000
/** Of one answer. */
const mostAtOnce = 500

/** What agents of this runner wrote, by run, oldest run first. */
export class WriteLedger implements WrittenObjects {
  readonly #runs = new Map<string, ObjectWrite[]>()
  #kept = 0
  // A runner that was restarted goes on behind what its former process said.
  #next = Date.now() * 1_000

  note({ tenantId, runId }: Parameters<WrittenObjects['note']>[0], write: Omit<ObjectWrite, 'n'>): void {
    const key = keyOf(tenantId, runId)
    const writes = this.#runs.get(key) ?? []
    writes.push({ n: this.#next++, ...write })
    this.#runs.set(key, writes)
    this.#kept++
    for (const oldest of this.#runs.keys()) {
      if (this.#kept <= mostKept) return
      this.#drop(oldest)
    }
  }
  of({ tenantId, runId }: Parameters<WrittenObjects['of']>[0], after: number): readonly ObjectWrite[] {
    const key = keyOf(tenantId, runId)
    const left = (this.#runs.get(key) ?? []).filter(({ n }) => n > after)
    this.#drop(key)
    if (left.length === 0) return []
    this.#runs.set(key, left)
    this.#kept += left.length
    return left.slice(0, mostAtOnce)
  }
  #drop(key: string): void {
    this.#kept -= this.#runs.get(key)?.length ?? 0
    this.#runs.delete(key)
  }
}

const keyOf = (tenantId: string, runId: string): string => `${tenantId}\n${runId}`
