import { capability } from '../plugin.ts'

/** Work that must be done whichever process dies: one process does it at a time, and another one goes on when that is gone. */
export interface Jobs {
  /**
   * Does `work` by a schedule, five fields of cron in UTC. It may be done again from its beginning, so it has to go on from what it
   * finds. The signal aborts when the process stops, or has lost the job. Called in setup.
   */
  every(name: string, cron: string, work: (signal: AbortSignal) => Promise<void>): void
  /** Has the job done soon, beside its schedule. Nothing more is asked for while it waits or is under way. */
  ask(name: string): Promise<void>
}
export const Jobs = capability<Jobs>('conductor.jobs')
