import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError, linesOf } from '#kernel'
import { hasStamp, isTerminalType, parseLine, peekType } from '#contracts/run-event'
import type { LogChunk } from '#contracts/runs'
import { conductorWire } from '#contracts/wire/conductor'
import type { LinesAnswer, Peer } from '#kit'
import { ConductorLost, meaningOf, upstream } from './errors.ts'

/** A conductor that restarts is waited for this long. */
const giveUpMs = 60_000
const pauseMs = { first: 100, longest: 2_000 }

export interface FollowOptions {
  readonly tenantId: string
  readonly runId: string
  readonly afterSeq: number
  readonly signal: AbortSignal
  /** An answer whose lines are this log already. */
  readonly first?: LinesAnswer
  /** Milliseconds without any progress after which it gives up; tests shorten it. */
  readonly giveUpMs?: number
}

/** A run's log, each event once and in order, over as many connections as it takes. */
export async function* follow(conductor: Peer, options: FollowOptions): AsyncGenerator<LogChunk> {
  const { tenantId: tenant, runId, signal } = options
  const patience = options.giveUpMs ?? giveUpMs
  let cursor = options.afterSeq
  let pause = pauseMs.first
  let stuckSince: number | undefined
  for (let log = options.first; ; log = undefined) {
    const openedAt = performance.now()
    let failure: unknown
    try {
      const query = { after: cursor }
      log ??= await conductor.ask(conductorWire.events, { tenant, params: { id: runId }, query, signal })
      for await (const lines of log.lines) {
        const chunk = chunkOf(lines, runId, cursor + 1)
        const over = isOver(lines)
        cursor += chunk.count
        stuckSince = undefined
        pause = pauseMs.first
        // Our reader leaves at the terminal event.
        if (over) log.expectEnd()
        yield chunk
        if (over) return
      }
    } catch (error) {
      signal.throwIfAborted()
      if (!isTransient(error)) throw isAppError(error) ? meaningOf(error) : error
      failure = error
    }
    // A stream that ended in order, because its conductor is stopping, or was only silent, is none that failed if it lasted.
    const now = performance.now()
    const quiet = failure === undefined || (failure instanceof ConductorLost && failure.silent)
    stuckSince = quiet && now - openedAt > pauseMs.longest ? undefined : (stuckSince ?? now)
    if (stuckSince !== undefined && now - stuckSince >= patience) throw upstream({ cause: failure })
    await sleep(pause, undefined, { signal })
    pause = Math.min(pause * 2, pauseMs.longest)
  }
}

const isTransient = (error: unknown): boolean =>
  error instanceof ConductorLost || error instanceof OutOfOrder || (isAppError(error) && error.retryable)

class OutOfOrder extends Error {}

/**
 * Lines as a chunk that begins with `firstSeq`; a log that goes on with anything else is asked for again. But the ending is
 * told to whoever is past it too, under its own number.
 */
function chunkOf(lines: Buffer, runId: string, firstSeq: number): LogChunk {
  let count = 0
  for (let at = lines.indexOf(0x0a); at >= 0; at = lines.indexOf(0x0a, at + 1)) count++
  const [first] = linesOf(lines)
  if (!first || hasStamp(first, runId, firstSeq)) return { firstSeq, count, lines }
  const seq = Number(parseLine(first)?.['seq'])
  const isEnding = count === 1 && seq < firstSeq && isTerminalType(peekType(first))
  if (seq !== firstSeq && !isEnding) throw new OutOfOrder(`expected event ${firstSeq}`)
  return { firstSeq: seq, count, lines }
}

function isOver(lines: Buffer): boolean {
  const end = lines.length - 1
  return isTerminalType(peekType(lines.subarray(end > 0 ? lines.lastIndexOf(0x0a, end - 1) + 1 : 0, end)))
}
