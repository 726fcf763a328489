import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import type { LogChunk, RunDispatch } from '#contracts/runs'
import { encodeFrames, lastSeqOf, terminalEvent } from './frames.ts'
import type { Caller } from './authenticate.ts'
import { type Chat, watchedChat } from './once.ts'
import { type Outcome, terminalFrame } from './outcome.ts'
import { closing } from './run-log.ts'
import { findRun, type StoredRun } from './runs.store.ts'
import type { Watchers } from './watchers.ts'

/** How often an open run that another gateway watches is looked at, when its event log has nothing more to tell. */
const lookAgainMs = 300

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
}

export interface Reading {
  readonly exposeToolEvents: boolean
  readonly afterSeq: number
  /** A run that is over is told from its log too, not by its end alone. */
  readonly whole?: boolean
}

/**
 * The frames of a run that no watcher of this process follows: events are read from the conductor, and the end from the
 * database, where the gateway that owns the run writes it.
 */
export async function* followElsewhere(
  { database, dispatch }: Dependencies,
  run: StoredRun,
  { exposeToolEvents, afterSeq, whole = false }: Reading,
  signal: AbortSignal,
): AsyncGenerator<string> {
  const { tenantId, publicRunId, runId } = run
  let cursor = afterSeq
  let over = false
  let { outcome }: { outcome: Outcome | undefined } = run
  try {
    for (let told = outcome !== undefined && !whole; !told;) {
      if (!over) {
        for await (const chunk of unlessUnknown(dispatch.follow(tenantId, runId, cursor, signal))) {
          const frames = encodeFrames(chunk, cursor, exposeToolEvents)
          cursor = Math.max(cursor, lastSeqOf(chunk))
          over = terminalEvent(chunk) !== undefined
          if (frames !== '') yield frames
        }
      }
      outcome ??= (await findRun(database, tenantId, publicRunId))?.outcome
      told = outcome !== undefined
      if (!told) await sleep(lookAgainMs, undefined, { signal })
    }
    yield terminalFrame(run, outcome!)
  } catch (error) {
    if (!signal.aborted && !isAppError(error)) throw error
    // Nothing is known about the run's end, so nothing is said: the client resumes.
    if (signal.reason !== 'client_gone') yield closing
  }
}

/** Finds a chat of the caller's agent, for a request that repeats the one which began it. */
export const createJoin =
  (deps: Dependencies & { readonly watchers: Watchers }) =>
  async ({ tenantId, agent }: Caller, publicRunId: string): Promise<Chat | undefined> => {
    const watcher = deps.watchers.get(publicRunId)
    if (watcher?.tenantId === tenantId && watcher.publishedId === agent.id) return watchedChat(watcher)
    const run = await findRun(deps.database, tenantId, publicRunId)
    return run?.publishedId === agent.id ? storedChat(deps, run, agent.exposeToolEvents) : undefined
  }

function storedChat(deps: Dependencies, run: StoredRun, exposeToolEvents: boolean): Chat {
  const { tenantId, publicRunId, conversationId, outcome } = run
  // Without a terminal event it ended before the conductor had taken it.
  const refused = outcome !== undefined && outcome.status !== 'ok' && outcome.seq === 0
  return {
    publicRunId,
    conversationId,
    dispatched: Promise.resolve(refused ? outcome : undefined),
    async ended(signal) {
      let found = outcome
      while (!found && !signal.aborted) {
        found = (await findRun(deps.database, tenantId, publicRunId))?.outcome
        if (!found) await sleep(lookAgainMs, undefined, { signal }).catch(() => {})
      }
      return found
    },
    follow: (signal) => followElsewhere(deps, run, { exposeToolEvents, afterSeq: 0, whole: true }, signal),
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
