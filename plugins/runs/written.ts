import type { FastifyBaseLogger } from 'fastify'
import type { ObjectWrites } from '#contracts/object-writes'
import type { Claim } from '#contracts/run-store'
import type { RunnerLink } from '#contracts/runner'

export interface WrittenDeps {
  /** Undefined: this role has no object store. */
  readonly objectWrites: ObjectWrites | undefined
  readonly log: FastifyBaseLogger
}

/** What the agent of one run writes to the object store, as its runner says it when the run tells that there is something. */
export class Written {
  readonly #deps: WrittenDeps
  readonly #claim: Claim
  #after = 0
  #looking = false
  #again = false

  constructor(deps: WrittenDeps, claim: Claim) {
    this.#deps = deps
    this.#claim = claim
  }

  /** Called whenever the run tells of a write. */
  look(runner: RunnerLink): void {
    if (!this.#deps.objectWrites) return
    this.#again = true
    if (this.#looking) return
    this.#looking = true
    this.#read(runner, this.#deps.objectWrites).catch((err: unknown) => {
      this.#looking = false
      this.#deps.log.warn({ err, runId: this.#claim.runId }, 'what an agent wrote could not be put on record yet')
    })
  }

  async #read(runner: RunnerLink, sink: ObjectWrites): Promise<void> {
    const { tenantId, sessionId, runId } = this.#claim
    while (this.#again) {
      this.#again = false
      const writes = await runner.objectWrites(tenantId, sessionId, runId, this.#after)
      const last = writes.at(-1)
      if (!last) continue
      await sink.noted(this.#claim, writes)
      // The next look also tells the runner what it may forget.
      this.#after = last.n
      this.#again = true
    }
    this.#looking = false
  }
}
