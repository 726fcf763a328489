import type { FastifyBaseLogger } from 'fastify'
import { createLineQueue } from '#kernel'
import type { RunEnvelope } from '#contracts/run-envelope'
import { createEventEncoder, type EventEncoder, isTerminalType, type RuntimeEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import type { EventWriter } from './event-writer.ts'
import type { RunOutcome } from './metrics.ts'
import {
  type Ending,
  endings,
  eventTooLarge,
  invalidEvent,
  noTerminal,
  type TerminalEvent,
  thrown,
} from './terminal.ts'

/** How long an adapter may take to stop after its signal aborted, or to put things away after its last event. */
const graceMs = 2_000
/** Larger delays overflow the timer, and it fires at once. */
const maxTimerMs = 2_147_483_647

export interface HostedRun {
  /** True once the terminal event is written. */
  readonly ended: boolean
  /** Resolves when the adapter has let go of the session, or its grace is over. */
  readonly released: Promise<void>
  /** Starts the run. Call it once. */
  lines(signal: AbortSignal): AsyncIterable<Buffer>
  abort(why: Ending): void
}

export interface HostOptions {
  readonly log: FastifyBaseLogger
  readonly write: EventWriter
  /** The former run of this session; the adapter is not called before it resolved. */
  readonly after: Promise<void> | undefined
  onEnd(outcome: RunOutcome): void
}

/** One run: whatever its adapter does, the stream ends with exactly one `result` or `error`, and it ends in time. */
export function hostRun(envelope: RunEnvelope, runtime: Runtime, options: HostOptions): HostedRun {
  const { log, write } = options
  const encoderFrom = (seq: number): EventEncoder => createEventEncoder(envelope.runId, envelope.sessionId, seq)
  let encoder = encoderFrom(envelope.firstSeq)
  const queue = createLineQueue()
  const stop = new AbortController()
  const { promise: released, resolve: release } = Promise.withResolvers<void>()
  let why: Ending | undefined
  let ended = false
  let counted = false
  let deadline: NodeJS.Timeout | undefined
  let grace: NodeJS.Timeout | undefined
  let wake: (() => void) | undefined

  /** The event's line, or what to end the run with instead. */
  const encode = (event: RuntimeEvent): string | TerminalEvent => {
    const seq = encoder.next
    const written = write(encoder, event)
    if ('line' in written) return written.line
    // The refused event may have taken a stamp; readers expect no gap.
    encoder = encoderFrom(seq)
    return written.problem === 'invalid' ? invalidEvent : eventTooLarge
  }
  const finish = (event: TerminalEvent): void => {
    if (ended) return
    const line = encode(event)
    if (typeof line !== 'string') return finish(line)
    ended = true
    clearTimeout(deadline)
    clearTimeout(grace)
    void queue.push(line)
    queue.close()
    grace = setTimeout(release, graceMs)
    wake?.()
    options.onEnd(event.type === 'result' ? 'ok' : event.code === 'cancelled' ? 'cancelled' : 'error')
    // With a reason of its own: making the default one, an error with a stack, costs more than the rest of this.
    stop.abort('over')
  }
  const abort = (reason: Ending): void => {
    if (ended || why) return
    why = reason
    grace = setTimeout(() => {
      finish(endings[reason])
      release()
    }, graceMs)
    wake?.()
    stop.abort()
  }
  /** Undefined: go on. True: the run is over. */
  const take = (event: RuntimeEvent): true | Promise<void> | undefined => {
    if (why) return takeLast(event)
    if (isTerminal(event)) {
      finish(event)
      return true
    }
    const line = encode(event)
    if (typeof line !== 'string') {
      finish(line)
      return true
    }
    const room = queue.push(line)
    if (room === undefined) return undefined
    return new Promise((resolve) => {
      wake = resolve
      void room.then(resolve)
    })
  }
  /** A run that is being stopped says nothing more, but what it used is still counted. */
  const takeLast = (event: RuntimeEvent): true | Promise<void> => {
    if (isTerminal(event)) return true
    const line = event?.type === 'usage' && !counted ? encode(event) : undefined
    if (typeof line === 'string') {
      counted = true
      void queue.push(line)
    }
    // An adapter that yields without end would otherwise keep every timer of this process from firing.
    return new Promise((resolve) => void setImmediate(resolve))
  }
  const drive = async (): Promise<void> => {
    let iterator: AsyncIterator<RuntimeEvent> | undefined
    try {
      if (options.after) await options.after
      if (!why) {
        iterator = runtime.run(envelope, stop.signal)[Symbol.asyncIterator]()
        while (!ended) {
          const { done, value } = await iterator.next()
          if (done || ended) break
          const over = take(value)
          if (over === true) break
          if (over !== undefined) await over
        }
      }
      finish(why ? endings[why] : noTerminal)
    } catch (err) {
      const event = thrown(err)
      if (!why && event.code === 'runtime_error') log.error({ err, runId: envelope.runId }, 'a runtime threw')
      finish(why ? endings[why] : event)
    }
    try {
      await iterator?.return?.()
    } catch {
      // The run has its last event: how its adapter fails to leave concerns nobody any more.
    }
    clearTimeout(grace)
    release()
  }
  return {
    get ended() {
      return ended
    },
    released,
    abort,
    async *lines(signal) {
      const onAbort = (): void => abort(signal.reason === 'shutdown' ? 'interrupted' : 'cancelled')
      if (signal.aborted) onAbort()
      else signal.addEventListener('abort', onAbort, { once: true })
      deadline = setTimeout(() => abort('timeout'), Math.min(envelope.timeoutMs, maxTimerMs))
      // Said at once: whoever holds the session's bundle waits to hear that it is not needed.
      if (envelope.resume) take({ type: 'progress', stage: 'resumed' })
      if ((envelope.attempt ?? 1) > 1 && !runtime.replays) take(repeated)
      void drive()
      try {
        yield* queue
      } finally {
        signal.removeEventListener('abort', onAbort)
        // The reader left: nobody is there to hear the rest.
        abort('cancelled')
      }
    },
  }
}

/** Readers drop what they have of the run: all of it is said again. */
const repeated: RuntimeEvent = {
  type: 'progress',
  stage: 'repeated',
  supersedes: 1,
  message: 'This runtime does the turn again from its start.',
}

const isTerminal = (event: RuntimeEvent): event is TerminalEvent => isTerminalType(event?.type)
