import type { TenantLimits } from '#contracts/limits'
import { Pace } from '#kit'
import type { Claimed } from './outcome.ts'

/** How long a node is tried that cannot start because a limit is reached or no runner is available. */
const longestMs = 3_600_000
/** It waits for a second, and then for its turn among those of its tenant that wait like it. */
const leastWaitMs = 1_000
/** Of however many, a process tries as many in this time as the tenant may have runs at once: so soon are all these places taken again. */
const refillMs = 5_000
const leastTries = 20
/** A child that waits for a place is tried again after this part of the time that it has waited. */
const partOfWait = 1 / 20

/** Says when attempts are made again that could not begin. */
export class Patience {
  readonly #limits: Pick<TenantLimits, 'of'> | undefined
  readonly #tries = new Pace({ atOnce: 1, longestMs: Infinity })
  constructor(limits: Pick<TenantLimits, 'of'> | undefined) {
    this.#limits = limits
  }

  /** In how many milliseconds it is made again. Undefined: it has waited long enough, and fails. */
  againIn({
    tenantId,
    spec,
    nowMs,
    startedMs,
  }: Pick<Claimed, 'spec' | 'nowMs' | 'startedMs'> & { readonly tenantId: string }): number | undefined {
    const waitedMs = nowMs - startedMs
    const isChild = spec.type === 'workflow'
    // A child was accepted with its run, and its place may be taken for days, by runs that wait for people. Each try is an event, so they become rarer.
    if (!isChild && waitedMs >= longestMs) return undefined
    const tries = Math.max(leastTries, this.#limits?.of(tenantId).runningRuns ?? 0)
    const turnMs = this.#tries.turnOf(`${tenantId} ${isChild}`, refillMs / tries)!
    return leastWaitMs + turnMs + (isChild ? waitedMs * partOfWait : 0)
  }
}
