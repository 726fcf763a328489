import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import type { LogChunk, RunDispatch } from '#contracts/runs'
import { encodeFrames, lastSeqOf, terminalEvent } from './frames.ts'
import { type Outcome, terminalFrame } from './outcome.ts'
import { closing } from './run-log.ts'
import { findRun, type StoredRun } from './runs.store.ts'

/** How often an open run that another gateway watches is looked at, when its event log has nothing more to tell. */
const lookAgainMs = 300

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
}

/**
 * The frames of a run that no watcher of this process follows: events are read from the conductor, and the end from the
 * database, where the gateway that owns the run writes it.
 */
export async function* followElsewhere(
  { database, dispatch }: Dependencies,
  run: StoredRun,
  exposeToolEvents: boolean,
  afterSeq: number,
  signal: AbortSignal,
): AsyncGenerator<string> {
  const { tenantId, publicRunId, runId } = run
  let cursor = afterSeq
  let over = false
  let { outcome }: { outcome: Outcome | undefined } = run
  try {
    while (!outcome) {
      if (!over) {
        for await (const chunk of unlessUnknown(dispatch.follow(tenantId, runId, cursor, signal))) {
          const frames = encodeFrames(chunk, cursor, exposeToolEvents)
          cursor = Math.max(cursor, lastSeqOf(chunk))
          over = terminalEvent(chunk) !== undefined
          if (frames !== '') yield frames
        }
      }
      outcome = (await findRun(database, tenantId, publicRunId))?.outcome
      if (!outcome) await sleep(lookAgainMs, undefined, { signal })
    }
    yield terminalFrame(run, outcome)
  } catch (error) {
    if (!signal.aborted && !isAppError(error)) throw error
    // Nothing is known about the run's end, so nothing is said: the client resumes.
    if (signal.reason !== 'client_gone') yield closing
  }
}

/** A run that is being dispatched may not have reached the conductor yet: its log is still empty. */
async function* unlessUnknown(log: AsyncIterable<LogChunk>): AsyncGenerator<LogChunk> {
  try {
    yield* log
  } catch (error) {
    if (!isAppError(error) || error.code !== 'not_found') throw error
  }
}
