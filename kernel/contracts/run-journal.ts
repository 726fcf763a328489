import { capability } from '../plugin.ts'
import type { Profile } from './profiles.ts'
import type { LogChunk, Usage } from './run-event.ts'
import type { RunStore } from './run-store.ts'
import type { SubTask, TerminalRunStatus } from './runs.ts'

/** First line of a run's file. */
export interface JournalHeader {
  readonly tenantId: string
  readonly runId: string
  readonly sessionId: string
  readonly task: SubTask
  readonly startedAt: string
  /** The session's snapshot of its profile; only with the run that created the session. */
  readonly create?: Profile
}

/** Last line of a finished run's file. The answer itself is in the `result` event. */
export interface JournalFinish {
  readonly status: TerminalRunStatus
  readonly finishedAt: string
  readonly error?: { readonly code: string; readonly message: string }
  readonly usage?: Usage
}

/** A run as its file tells it. */
export interface JournaledRun {
  readonly header: JournalHeader
  readonly log: LogChunk | undefined
  readonly finish: JournalFinish
}

/** Append-only JSONL files, one per run: a header line, the event lines, a finish line. Specification 2.7. */
export interface RunJournal {
  /** A store whose runs are written to files as well, behind it: the store stays the truth, and mends files that were torn. */
  mirror(store: RunStore): RunStore
  /** A store that forgets when its process ends: files are written first. `restore` gets what the files hold, oldest first, before this resolves. */
  keep(store: RunStore, restore: (run: JournaledRun) => void): Promise<RunStore>
}
export const RunJournal = capability<RunJournal>('conductor.run-journal')
