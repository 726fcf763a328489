import { capability } from '../plugin.ts'
import type { Statement, TenantTx } from './database.ts'

/** Work that must be done whichever process dies: one process does it at a time, and another one goes on when that is gone. */
export interface Jobs {
  /**
   * Does `work` by a schedule, five fields of cron in UTC. It may be done again from its beginning, so it has to go on from what it
   * finds. The signal aborts when the process stops, or has lost the job. Called in setup.
   */
  every(name: string, cron: string, work: (signal: AbortSignal) => Promise<void>): void
  /** Has the job done soon, beside its schedule. Nothing more is asked for while it waits or is under way. */
  ask(name: string): Promise<void>
  /**
   * A queue of wake-ups, for whoever keeps in tables of its own what there is to do. Any process that has called this takes them,
   * several at once. `work` should be short; when it throws, or its process dies, the wake-up comes again. Called in setup.
   */
  wakeUps(name: string, work: (what: Wake['what'], signal: AbortSignal) => Promise<void>): WakeUps
}

/** One look at something. */
export interface Wake {
  readonly tenantId: string
  /** Names what is to be looked at: ids, since the tables of jobs know no tenants. */
  readonly what: Readonly<Record<string, string>>
  /** Of those of one key that nobody has taken yet, there is one. */
  readonly key: string
  /** In so many milliseconds, instead of now. */
  readonly afterMs?: number
}

export interface WakeUps {
  /** Inside a transaction they come to be with it, so that no wake-up is lost and none is early. */
  send(wakes: readonly Wake[], tx?: TenantTx): Promise<void>
  /** What `send` would run, for a batch of statements that goes with them. */
  statements(wakes: readonly Wake[]): Promise<readonly Statement[]>
}
export const Jobs = capability<Jobs>('conductor.jobs')
