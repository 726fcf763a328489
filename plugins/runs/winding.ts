import type { Kv } from '#contracts/kv'
import type { RunStore } from '#contracts/run-store'
import { isTerminal } from '#contracts/runs'
import type { Execution } from './execution.ts'
import type { Stop } from './last-words.ts'
import { followStored } from './follow.ts'
import { within } from './timing.ts'

/** How long a caller waits for a run to be over before it goes on without. Specification 4.8. */
export const drainWaitMs = 2_000
/** Behind every event: whoever reads a log from here learns whether the run is over, and nothing else. */
const pastEvents = 2 ** 30

export interface WindingDeps {
  readonly store: RunStore
  readonly kv: Kv
  /** The run, when this process executes it. */
  readonly local: (tenantId: string, runId: string) => Execution | undefined
}

/** What came of ending a run. */
export interface Wound {
  /** Somebody executed it and was given time; not so a run that waited in a queue, or was over. */
  readonly waited: boolean
  /** Its claim was released by whoever held it. */
  readonly drained: boolean
  /** It was taken from whoever held it, or from its queue. */
  readonly stolen: boolean
}
export type WindDown = (tenantId: string, runId: string, why: Stop) => Promise<Wound>

/** Ends a run wherever it executes: whoever does is asked first, so that its runner is told, and gets 2 seconds. */
export function createWinding({ store, kv, local }: WindingDeps): WindDown {
  const overInTime = async (tenantId: string, runId: string): Promise<boolean> => {
    const enough = new AbortController()
    const over = (async () => {
      for await (const chunk of followStored(store, kv, tenantId, runId, pastEvents, enough.signal)) void chunk
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
      const log = await store.readLog(tenantId, runId, pastEvents)
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
