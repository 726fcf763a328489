import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError, linesOf, notFound, wholeLines } from '#kernel'
import {
  createEventEncoder,
  hasStamp,
  isTerminalType,
  parseLine,
  peekType,
  type RuntimeEvent,
} from '#contracts/run-event'
import { isTerminal, type LogChunk, type RunSummary } from '#contracts/runs'
import { readJson, type Reply } from '#kit'
import type { Conductor } from './conductor.ts'
import { conductorUnreachable, ConnectionLost, refusal } from './errors.ts'

/** A conductor that restarts is waited for this long. */
const giveUpMs = 60_000
const pauseMs = { first: 100, longest: 2_000 }
const maxErrorBytes = 64 * 1024

export interface FollowOptions {
  readonly tenantId: string
  readonly runId: string
  readonly afterSeq: number
  readonly signal: AbortSignal
  /** An answer whose body is this log already. */
  readonly first?: Reply
  /** The run as it is, for a log that ends before its terminal event. */
  readonly find: () => Promise<RunSummary | undefined>
  /** Milliseconds without any progress after which it gives up; tests shorten it. */
  readonly giveUpMs?: number
}

/** A run's log, each event once and in order, over as many connections as it takes. */
export async function* follow(conductor: Conductor, options: FollowOptions): AsyncGenerator<LogChunk> {
  const { tenantId, runId, signal } = options
  const patience = options.giveUpMs ?? giveUpMs
  let cursor = options.afterSeq
  let pause = pauseMs.first
  let lostSince: number | undefined
  let finished: RunSummary | undefined
  for (let reply = options.first; ; reply = undefined) {
    try {
      reply ??= await open(conductor, tenantId, runId, cursor, signal)
      const before = cursor
      for await (const lines of wholeLines(reply.body)) {
        const chunk = chunkOf(lines, runId, cursor + 1)
        const over = isOver(lines)
        cursor += chunk.count
        lostSince = undefined
        pause = pauseMs.first
        // Our reader leaves at the terminal event.
        if (over) reply.expectEnd()
        yield chunk
        if (over) return
      }
      // Ended in order: the conductor has told all it can, e.g. because it is stopping.
      lostSince = undefined
      if (cursor === before) {
        // Asked once more after the run was seen finished, and still nothing: its terminal event is behind us.
        if (finished) return yield terminalOf(finished, cursor + 1)
        const run = await options.find()
        if (run && isTerminal(run.status)) {
          finished = run
          continue
        }
      }
    } catch (error) {
      signal.throwIfAborted()
      if (!isTransient(error)) throw error
      const now = performance.now()
      // A stream that was only silent was no failure.
      lostSince = isSilence(error) ? undefined : (lostSince ?? now)
      if (lostSince !== undefined && now - lostSince >= patience) throw conductorUnreachable({ cause: error })
    }
    await sleep(pause, undefined, { signal })
    pause = Math.min(pause * 2, pauseMs.longest)
  }
}

/**
 * A conductor that was killed may have shown events that it had not stored yet. Its run then ends at a lower number than
 * its reader has seen, so the reader gets the ending under the next number of its own.
 */
function terminalOf(run: RunSummary, seq: number): LogChunk {
  const event: RuntimeEvent =
    run.status === 'ok'
      ? { type: 'result', text: run.result ?? '', finishReason: 'stop' }
      : { type: 'error', code: run.error?.code ?? run.status, message: run.error?.message ?? 'The run did not finish.' }
  return { firstSeq: seq, count: 1, lines: Buffer.from(createEventEncoder(run.runId, run.sessionId, seq).line(event)) }
}

async function open(
  conductor: Conductor,
  tenantId: string,
  runId: string,
  afterSeq: number,
  signal: AbortSignal,
): Promise<Reply> {
  const path = `/api/runs/${encodeURIComponent(runId)}/events?after=${afterSeq}`
  const reply = await conductor.call({ tenantId, method: 'GET', path, accept: 'application/x-ndjson', signal })
  if (reply.status === 200) return reply
  const body = await readJson(reply, maxErrorBytes)
  throw reply.status === 404 ? notFound() : refusal(reply.status, body)
}

const isTransient = (error: unknown): boolean =>
  error instanceof ConnectionLost || error instanceof OutOfOrder || (isAppError(error) && error.retryable)

const isSilence = (error: unknown): boolean =>
  error instanceof ConnectionLost && (error.cause as { code?: unknown } | undefined)?.code === 'UND_ERR_BODY_TIMEOUT'

class OutOfOrder extends Error {}

/** Lines as a chunk that begins with `firstSeq`; a log that goes on with anything else is asked for again. */
function chunkOf(lines: Buffer, runId: string, firstSeq: number): LogChunk {
  const [first] = linesOf(lines)
  if (first && !hasStamp(first, runId, firstSeq) && parseLine(first)?.['seq'] !== firstSeq) {
    throw new OutOfOrder(`expected event ${firstSeq}`)
  }
  let count = 0
  for (let at = lines.indexOf(0x0a); at >= 0; at = lines.indexOf(0x0a, at + 1)) count++
  return { firstSeq, count, lines }
}

function isOver(lines: Buffer): boolean {
  const end = lines.length - 1
  return isTerminalType(peekType(lines.subarray(end > 0 ? lines.lastIndexOf(0x0a, end - 1) + 1 : 0, end)))
}
