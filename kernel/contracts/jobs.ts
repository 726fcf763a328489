import { capability } from '../plugin.ts'
import type { Statement, TenantTx } from './database.ts'

/** Work that must survive the death of any process: one process does it at a time, and another one continues when it dies. */
export interface Jobs {
  /**
   * Does `work` by a schedule, five fields of cron in UTC. It may be started again, so it must continue from the state that it
   * finds. The signal aborts when the process stops, or has lost the job. Called in setup.
   */
  every(name: string, cron: string, work: (signal: AbortSignal) => Promise<void>): void
  /** Runs the job soon, in addition to its schedule. Further requests are ignored while it waits or runs. */
  ask(name: string): Promise<void>
  /**
   * A queue of wake-ups, for plugins that keep their work in their own tables. Any process that has called this takes them,
   * several at once. `work` should be short; when it throws, or its process dies, the wake-up comes again. Called in setup.
   */
  wakeUps(name: string, work: (what: Wake['what'], signal: AbortSignal) => Promise<void>): WakeUps
}

/** A request to check something. */
export interface Wake {
  readonly tenantId: string
  /** What to check: only ids, because the tables of jobs have no tenants. */
  readonly what: Readonly<Record<string, string>>
  /** At most one untaken wake-up exists for a key. */
  readonly key: string
  /** Delay in milliseconds. */
  readonly afterMs?: number
  /** A UUID by which it is taken back when nothing is left to check. */
  readonly id?: string
}

export interface WakeUps {
  /** In a transaction they are created with it, so that no wake-up is lost and none is early. */
  send(wakes: readonly Wake[], tx?: TenantTx): Promise<void>
  /** The statements of `send`, for a batch. */
  statements(wakes: readonly Wake[]): Promise<readonly Statement[]>
  /** The statements that take wake-ups back that nobody has taken. */
  takenBack(ids: readonly string[]): Promise<readonly Statement[]>
}
export const Jobs = capability<Jobs>('conductor.jobs')
