import { type Static, Type } from '@sinclair/typebox'
import { isClientId } from '#contracts/ids'
import type { RunStore } from '#contracts/run-store'
import { endingOnly, isTerminal } from '#contracts/runs'
import { type Stop, within } from './ending.ts'
import { invalidRunId } from './errors.ts'
import { follow, type Logs } from './follow.ts'
import type { Run } from './run.ts'

/** How long a caller waits for a run to be over before it goes on without. Specification 4.8. */
export const drainWaitMs = 2_000

/** What came of ending a run. */
export interface Cancelled {
  /** Somebody executed it and was given time; not so a run that waited in a queue, or was over. */
  readonly waited: boolean
  /** Its claim was released by whoever held it. */
  readonly drained: boolean
  /** It was taken from whoever held it, or from its queue. */
  readonly stolen: boolean
}
export type Cancel = (tenantId: string, runId: string, why: Stop) => Promise<Cancelled>

export interface CancellationDeps {
  readonly store: RunStore
  readonly logs: Logs
  /** The run, when this process executes it. */
  readonly local: (tenantId: string, runId: string) => Run | undefined
}

/** Ends a run wherever it executes: whoever does is asked first, so that its runner is told, and gets 2 seconds. */
export function createCancel({ store, logs, local }: CancellationDeps): Cancel {
  const overInTime = async (tenantId: string, runId: string): Promise<boolean> => {
    const enough = new AbortController()
    const over = (async () => {
      for await (const chunk of follow(logs, tenantId, runId, endingOnly, enough.signal)) void chunk
    })()
    const inTime = await within(over, drainWaitMs)
    enough.abort()
    return inTime
  }
  return async (tenantId, runId, why) => {
    const { code, message } = why
    const run = local(tenantId, runId)
    let drained = false
    let waited = true
    if (run) {
      run.stop(why)
      drained = await within(run.done, drainWaitMs)
    } else {
      const log = await store.readLog(tenantId, runId, endingOnly)
      if (!log || isTerminal(log.status)) return { waited: false, drained: false, stolen: false }
      waited = log.status === 'running'
      if (waited) {
        await store.ask(tenantId, runId, { code, message })
        drained = await overInTime(tenantId, runId)
      }
    }
    const stolen = !drained && (await store.steal(tenantId, runId, 'cancelled', { code, message }))
    if (stolen) run?.abandon()
    return { waited, drained, stolen }
  }
}

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

/** Cancel, wait for the claim to drain, steal it if it does not, mark the row. Every step that fails is told, none stops the next. */
export async function terminateRun(
  { store, local }: CancellationDeps,
  cancel: Cancel,
  tenantId: string,
  runId: string,
  reason: Stop,
): Promise<Terminated> {
  if (!isClientId(runId)) throw invalidRunId()
  const warnings: string[] = []
  const here = local(tenantId, runId) !== undefined
  if (!here) warnings.push('not_executing_here')
  let found = here
  let drained = false
  let claimStolen = false
  let durableUpdated = false
  try {
    const cancelled = await cancel(tenantId, runId, reason)
    drained = cancelled.drained
    claimStolen = cancelled.stolen
    if (cancelled.waited && !drained) warnings.push('drain_timeout')
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
