import { capability } from '../plugin.ts'
import type { Statement, TenantTx } from './database.ts'

/** Work that survives the death of any process: one process does it at a time, and another continues if that process dies. */
export interface Jobs {
  /**
   * Does `work` on a schedule, given as five cron fields in UTC. The work may be started again, so it must continue from the state that it finds.
   * The signal aborts when the process stops or has lost the job. Call it in setup.
   */
  every(name: string, cron: string, work: (signal: AbortSignal) => Promise<void>): void
  /** Runs the job soon, in addition to its schedule. Further requests are ignored while it waits or runs. */
  ask(name: string): Promise<void>
  /**
   * A queue of wake-ups, for plugins that keep their work in their own tables. Every process that has called this takes wake-ups, several at once.
   * `work` should be short; if it throws or its process dies, the wake-up is delivered again. Call it in setup.
   */
  wakeUps(name: string, work: (what: Wake['what']) => Promise<void>): WakeUps
}

/** A request to check something. */
export interface Wake {
  readonly tenantId: string
  /** What to check: only ids, because the tables of jobs have no row security. They are erased with the tenant. */
  readonly what: Readonly<Record<string, string>>
  /** At most one untaken wake-up exists per key. */
  readonly key: string
  /** Delay in milliseconds. */
  readonly afterMs?: number
  /** A UUID by which the wake-up can be taken back when nothing is left to check. */
  readonly id?: string
}

export interface WakeUps {
  /** With a transaction the wake-ups commit together with it, so that none is lost and none comes too early. */
  send(wakes: readonly Wake[], tx?: TenantTx): Promise<void>
  /** The statements of `send`, for a batch. */
  statements(wakes: readonly Wake[]): Promise<readonly Statement[]>
  /** The statements that take back wake-ups that no process has taken yet. */
  takenBack(ids: readonly string[]): Promise<readonly Statement[]>
}
export const Jobs = capability<Jobs>('conductor.jobs')
