import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { LogChunk, RunDispatch } from '#contracts/runs'
import { lastSeqOf, terminalEvent } from './frames.ts'
import { errorOutcome, type Outcome, outcomeOfEvent, outcomeOfSummary, terminalFrame } from './outcome.ts'
import { createRunLog, type RunLog } from './run-log.ts'
import type { PublicRun } from './runs.store.ts'

/** Follows one public run to its end and writes that end, whoever listens or leaves meanwhile. */
export interface Watcher extends PublicRun {
  /** The instance whose claim the run is under; a sweep of this process moves it. */
  owner: string
  readonly log: RunLog
  readonly since: number
  /** Known once the conductor took the run. */
  readonly sessionId: string | undefined
  /** Resolves when the conductor took the run: to undefined, or to the outcome if it ended before that. */
  readonly dispatched: Promise<Outcome | undefined>
  /** Resolves when the end is stored and announced; to undefined when this process stopped first. */
  readonly ended: Promise<Outcome | undefined>
}

/** A run under way, or one that turned out to be over. */
export type Source =
  | { readonly sessionId: string; readonly events: AsyncIterable<LogChunk> }
  | { readonly over: Outcome }

export interface Watchers extends Iterable<Watcher> {
  readonly size: number
  get(publicRunId: string): Watcher | undefined
  open(run: WatchedRun, source: (signal: AbortSignal) => Promise<Source>): Watcher
  /** Ends all watching here, leaving the runs as they are, and waits until nothing writes any more. */
  close(): Promise<void>
}

export interface WatchedRun extends PublicRun {
  readonly owner: string
  readonly exposeToolEvents: boolean
}

interface Dependencies {
  readonly dispatch: RunDispatch
  readonly log: FastifyBaseLogger
  /** What a failure to start or follow a run means. */
  outcomeOf(error: unknown): Outcome
  /** Stores the end and resolves to what is then on record; rejects when the database is away. */
  commit(watcher: Watcher, outcome: Outcome): Promise<Outcome>
}

/** First and longest pause between attempts to store an end. Milliseconds. */
const retryMs = { first: 100, longest: 5_000 }

export function createWatchers({ dispatch, log, outcomeOf, commit }: Dependencies): Watchers {
  const watchers = new Map<string, Watcher>()
  const controllers = new Set<AbortController>()
  let closed = false

  const watch = async (
    { tenantId, runId, log: frames }: Watcher,
    first: AsyncIterable<LogChunk>,
    signal: AbortSignal,
  ): Promise<Outcome> => {
    for (let events = first, idle = 0; idle < 2;) {
      const from = frames.lastSeq
      for await (const chunk of events) {
        const event = terminalEvent(chunk)
        // The terminal event is not shown before it is stored.
        frames.append(event ? { ...chunk, count: chunk.count - 1 } : chunk)
        if (event) return outcomeOfEvent(event, lastSeqOf(chunk))
      }
      signal.throwIfAborted()
      // The contract ends a log with its terminal event; one that ended early is asked for the rest as long as it grows.
      idle = frames.lastSeq > from ? 0 : idle + 1
      events = dispatch.follow(tenantId, runId, frames.lastSeq, signal)
    }
    // A conductor that was killed may have shown more than it had stored: the end is then behind what was read.
    const summary = await dispatch.find(tenantId, runId)
    return (summary && outcomeOfSummary(summary)) ?? errorOutcome('incomplete', frames.lastSeq)
  }

  // The end must be stored however long the database is away: until then the run stays open and its clients wait.
  const store = async (watcher: Watcher, outcome: Outcome, signal: AbortSignal): Promise<Outcome> => {
    for (let pause = retryMs.first; ; pause = Math.min(pause * 2, retryMs.longest)) {
      try {
        return await commit(watcher, outcome)
      } catch (err) {
        signal.throwIfAborted()
        log.error({ err, publicRunId: watcher.publicRunId }, 'the end of a run could not be stored yet')
        await sleep(pause, undefined, { signal })
      }
    }
  }

  return {
    get size() {
      return watchers.size
    },
    get: (publicRunId) => watchers.get(publicRunId),
    [Symbol.iterator]: () => watchers.values(),
    open(run, source) {
      const controller = new AbortController()
      const { signal } = controller
      const dispatched = Promise.withResolvers<Outcome | undefined>()
      let sessionId: string | undefined
      const follow = async (): Promise<Outcome | undefined> => {
        const outcome = await start()
        const stored = await store(watcher, outcome, signal)
        watcher.log.end(terminalFrame(watcher, stored))
        return stored
      }
      const start = async (): Promise<Outcome> => {
        try {
          const begun = await source(signal)
          if ('over' in begun) return begun.over
          sessionId = begun.sessionId
          dispatched.resolve(undefined)
          return await watch(watcher, begun.events, signal)
        } catch (error) {
          signal.throwIfAborted()
          return outcomeOf(error)
        }
      }
      const { tenantId, publishedId, conversationId, publicRunId, runId, owner } = run
      const watcher: Watcher = {
        tenantId,
        publishedId,
        conversationId,
        publicRunId,
        runId,
        owner,
        since: performance.now(),
        log: createRunLog(run.exposeToolEvents, (after, until) => dispatch.follow(tenantId, runId, after, until)),
        get sessionId() {
          return sessionId
        },
        dispatched: dispatched.promise,
        ended: Promise.resolve()
          .then(follow)
          .catch((err: unknown) => {
            if (!signal.aborted) log.error({ err, publicRunId: publicRunId }, 'a watcher failed')
            return undefined
          })
          .finally(() => {
            watchers.delete(publicRunId)
            controllers.delete(controller)
          }),
      }
      void watcher.ended.then((outcome) => {
        watcher.log.detach()
        dispatched.resolve(outcome)
      })
      watchers.set(publicRunId, watcher)
      controllers.add(controller)
      if (closed) controller.abort()
      return watcher
    },
    async close() {
      closed = true
      for (const controller of controllers) controller.abort()
      await Promise.all([...watchers.values()].map((watcher) => watcher.ended))
    },
  }
}
