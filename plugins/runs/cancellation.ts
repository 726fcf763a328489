import { type Static, Type } from '@sinclair/typebox'
import type { RunStore } from '#contracts/run-store'
import { endingOnly, isTerminal } from '#contracts/runs'
import { type RunOrder, type Stop, within } from './ending.ts'
import type { RunLimits } from './limits.ts'
import { follow, type Logs } from './log.ts'
import type { Run } from './run.ts'

/** The runs that this process executes. */
export interface Executor {
  readonly limits: RunLimits
  local(tenantId: string, runId: string): Run | undefined
  begin(order: RunOrder): Run
  /** Whether a run of this session could be placed on a runner now. While it could not, the run keeps its place in the session's queue. */
  takes(sessionId: string): boolean
}

/** How long a caller waits for a run to end before the call proceeds without it. Specification 4.8. */
export const drainWaitMs = 2_000

/** The result of cancelling a run. */
interface Cancelled {
  /** A process was executing the run and was given time to end it. False for a run that was queued or already over. */
  readonly waited: boolean
  /** The holder of the claim released it. */
  readonly drained: boolean
  /** The run was taken from the holder of its claim, or from its queue. */
  readonly stolen: boolean
}

/** Per-step results of a force-terminate: callers look at every field, the status is always 200. Specification 4.8. */
export const Terminated = Type.Object({
  runId: Type.String(),
  found: Type.Boolean({ description: 'The run is known, in memory or in the store.' }),
  cancelled: Type.Boolean({ description: 'This process executed the run and stopped it.' }),
  drained: Type.Boolean({ description: 'The claim was released by its holder within 2 seconds.' }),
  claimStolen: Type.Boolean({ description: 'The claim was taken over from its holder.' }),
  durableUpdated: Type.Boolean({ description: 'This call moved the stored run to `cancelled`.' }),
  warnings: Type.Array(Type.String(), {
    description: '`unknown_run`, `not_executing_here`, `already_finished`, `drain_timeout`, `store_unavailable`.',
  }),
})
export type Terminated = Static<typeof Terminated>

/** Ends runs wherever they execute. The executing process is asked first, so that it stops its runner; it gets 2 seconds. */
export class Cancellation {
  readonly #store: RunStore
  readonly #logs: Logs
  readonly #executor: Executor

  constructor(store: RunStore, logs: Logs, executor: Executor) {
    this.#store = store
    this.#logs = logs
    this.#executor = executor
  }

  async cancel(tenantId: string, runId: string, why: Stop): Promise<Cancelled> {
    const { code, message } = why
    const run = this.#executor.local(tenantId, runId)
    let drained = false
    let waited = true
    if (run) {
      run.stop(why)
      drained = await within(run.done, drainWaitMs)
    } else {
      const log = await this.#store.readLog(tenantId, runId, endingOnly)
      if (!log || isTerminal(log.status)) return { waited: false, drained: false, stolen: false }
      if (await this.#store.endParked(tenantId, runId, 'cancelled', { code, message }))
        return { waited: false, drained: false, stolen: true }
      waited = log.status === 'running'
      if (waited) {
        await this.#store.requestEnd(tenantId, runId, { code, message })
        drained = await this.#overInTime(tenantId, runId)
      }
    }
    const stolen = !drained && (await this.#store.steal(tenantId, runId, 'cancelled', { code, message }))
    if (stolen) run?.abandon()
    // It was queued, and the one behind it may need less.
    const left = stolen && !waited ? await this.#store.findRun(tenantId, runId) : undefined
    if (left) this.#executor.limits.firstChanged(tenantId, left.sessionId)
    return { waited, drained, stolen }
  }

  /**
   * Cancels the run, waits for its claim to be released, takes the claim if it is not, and marks the row. A failed step does not stop the next one;
   * the answer names every step that failed.
   */
  async terminate(tenantId: string, runId: string, reason: Stop): Promise<Terminated> {
    const cancelled = this.#executor.local(tenantId, runId) !== undefined
    const warnings = cancelled ? [] : ['not_executing_here']
    const told = {
      runId,
      found: cancelled,
      cancelled,
      drained: false,
      claimStolen: false,
      durableUpdated: false,
      warnings,
    }
    try {
      const { waited, drained, stolen } = await this.cancel(tenantId, runId, reason)
      Object.assign(told, { drained, claimStolen: stolen })
      if (waited && !drained) warnings.push('drain_timeout')
      const run = await this.#store.findRun(tenantId, runId)
      told.found ||= run !== undefined
      told.durableUpdated = stolen || (drained && run?.status === 'cancelled')
      if (!told.found) warnings.push('unknown_run')
      else if (!told.durableUpdated) warnings.push('already_finished')
    } catch {
      warnings.push('store_unavailable')
    }
    return told
  }

  async #overInTime(tenantId: string, runId: string): Promise<boolean> {
    const enough = new AbortController()
    const over = (async () => {
      for await (const chunk of follow(this.#logs, tenantId, runId, endingOnly, enough.signal)) void chunk
    })()
    const inTime = await within(over, drainWaitMs)
    enough.abort()
    return inTime
  }
}
