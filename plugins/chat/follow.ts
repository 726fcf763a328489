import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import { lastSeqOf } from '#contracts/log-chunk'
import type { LogChunk, RunDispatch } from '#contracts/runs'
import { findRun, type PublicRun } from './chats.store.ts'
import { encodeFrames, terminalEvent } from './frames.ts'
import { type Outcome, outcomeOfEvent, terminalFrame } from './outcome.ts'

/** Tells a client that the stream ended here and not the run: it resumes with `Last-Event-ID`. */
const closing = ': closing\n\n'
/** How often a run is looked for that the conductor does not know yet. */
const lookAgainMs = 300

/** How a run ended, or why its end was not waited for here. */
export type Told = Outcome | 'unreachable' | 'stopping'

/** SSE frames of one run, at last its terminal one, or a comment that says that only the stream is over. Returns what was told. */
export type Frames = AsyncGenerator<string, Told>

export interface Reading {
  readonly afterSeq: number
  readonly exposeToolEvents: boolean
  /** The run's events behind `afterSeq`, where they are at hand; otherwise the conductor is asked for them. */
  readonly events?: AsyncIterable<LogChunk> | undefined
  /** How the run ended, to be told at once instead of its events. */
  readonly over?: Outcome | undefined
}

/** Reads the logs of runs for clients. It holds nothing but a cursor of each: a client that leaves ends its reading and not the run. */
export interface Follower {
  /** How many streams and synchronous calls it reads for. */
  readonly size: number
  frames(run: PublicRun, reading: Reading, signal: AbortSignal): Frames
}

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
  readonly log: FastifyBaseLogger
  onEnded(outcome: Outcome): void
}

export function createFollower({ database, dispatch, log, onEnded }: Dependencies): Follower {
  let size = 0
  return {
    get size() {
      return size
    },
    // One generator from the conductor's chunks to the socket: every layer costs a delta some microtasks.
    async *frames(run, reading, signal) {
      const { tenantId, publicRunId, runId } = run
      let { events, afterSeq } = reading
      if (reading.over) {
        yield terminalFrame(run, reading.over)
        return reading.over
      }
      let told: Told = 'stopping'
      size++
      try {
        for (let begun = false; !begun; events = undefined) {
          try {
            for await (const chunk of events ?? dispatch.follow(tenantId, runId, afterSeq, signal)) {
              const frames = encodeFrames(chunk, reading.exposeToolEvents)
              const event = terminalEvent(chunk)
              afterSeq = lastSeqOf(chunk)
              if (event) {
                // It was stored together with the public run and its message, so it is told as it comes.
                const outcome = outcomeOfEvent(event, afterSeq)
                onEnded(outcome)
                yield frames + terminalFrame(run, outcome)
                return outcome
              }
              if (frames !== '') yield frames
            }
            // The log ends before the run does: the conductor is stopping.
            begun = true
          } catch (error) {
            if (signal.aborted || !isAppError(error) || error.code !== 'not_found') throw error
            // The conductor does not know it yet, or never will: its row says when it is over.
            const outcome = (await findRun(database, tenantId, publicRunId))?.outcome
            if (outcome) {
              onEnded(outcome)
              yield terminalFrame(run, outcome)
              return outcome
            }
            await sleep(lookAgainMs, undefined, { signal })
          }
        }
      } catch (err) {
        if (!signal.aborted) {
          if (!isAppError(err)) throw err
          log.warn({ err, code: err.code, publicRunId }, 'chat.start_watcher_failed')
          told = 'unreachable'
        }
      } finally {
        size--
      }
      if (signal.reason !== 'client_gone') yield closing
      return told
    },
  }
}
