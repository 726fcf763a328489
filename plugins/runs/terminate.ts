import { type Static, Type } from '@sinclair/typebox'
import { isClientId } from '#contracts/ids'
import type { RunStore } from '#contracts/run-store'
import { invalidRunId } from './errors.ts'
import type { Execution } from './execution.ts'
import type { Stop } from './last-words.ts'
import type { WindDown } from './winding.ts'

/** Per-step results of a force-terminate: callers look at every field, the status is always 200. Specification 4.8. */
export const Terminated = Type.Object({
  runId: Type.String(),
  found: Type.Boolean({ description: 'The run is known, in memory or in the store.' }),
  cancelled: Type.Boolean({ description: 'This process executed the run and stopped it.' }),
  drained: Type.Boolean({ description: 'The claim was released by its holder within 2 seconds.' }),
  claimStolen: Type.Boolean({ description: 'The claim was taken from its holder.' }),
  durableUpdated: Type.Boolean({ description: 'This call moved the stored run to `cancelled`.' }),
  warnings: Type.Array(Type.String(), {
    description: '`unknown_run`, `not_executing_here`, `already_finished`, `drain_timeout`, `store_unavailable`.',
  }),
})
export type Terminated = Static<typeof Terminated>

export interface TerminateDeps {
  readonly store: RunStore
  readonly windDown: WindDown
  /** The run, when this process executes it. */
  readonly local: (tenantId: string, runId: string) => Execution | undefined
  readonly reason: Stop
}

/** Cancel, wait for the claim to drain, steal it if it does not, mark the row. Every step that fails is told, none stops the next. */
export async function terminateRun(deps: TerminateDeps, tenantId: string, runId: string): Promise<Terminated> {
  const { store, windDown, reason } = deps
  if (!isClientId(runId)) throw invalidRunId()
  const warnings: string[] = []
  const here = deps.local(tenantId, runId) !== undefined
  if (!here) warnings.push('not_executing_here')
  let found = here
  let drained = false
  let claimStolen = false
  let durableUpdated = false
  try {
    const wound = await windDown(tenantId, runId, reason)
    drained = wound.drained
    claimStolen = wound.stolen
    if (wound.waited && !drained) warnings.push('drain_timeout')
    const run = await store.findRun(tenantId, runId)
    found ||= run !== undefined
    durableUpdated = claimStolen || (drained && run?.status === 'cancelled')
    if (!found) warnings.push('unknown_run')
    else if (!durableUpdated) warnings.push('already_finished')
  } catch {
    warnings.push('store_unavailable')
  }
  return { runId, found, cancelled: here, drained, claimStolen, durableUpdated, warnings }
}
