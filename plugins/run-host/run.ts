import { TypeCompiler } from '@sinclair/typebox/compiler'
import type { FastifyBaseLogger } from 'fastify'
import { createLineQueue, isAppError, maxLineBytes } from '#kernel'
import { withoutCycles } from '#contracts/circular'
import { hasLinks } from '#contracts/prompt'
import type { RunEnvelope } from '#contracts/run-envelope'
import {
  createEventEncoder,
  type EventBatch,
  type EventEncoder,
  eventsOf,
  isTerminalType,
  isTexts,
  RuntimeEvent,
  type Texts,
} from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import { sidecarErrors } from '#contracts/sidecar-errors'

/** Milliseconds that an adapter may take to stop after its signal aborted, or to clean up after its last event. */
const graceMs = 2_000
/** Timers overflow on larger delays and fire at once. */
const maxTimerMs = 2_147_483_647

type ErrorEvent = Extract<RuntimeEvent, { type: 'error' }>
type TerminalEvent = Extract<RuntimeEvent, { type: 'result' | 'error' }>

export type RunOutcome = 'ok' | 'error' | 'cancelled'

/** Why the host ended a run whose adapter had not ended it. */
type Ending = 'cancelled' | 'timeout' | 'interrupted'

const endings: Readonly<Record<Ending, ErrorEvent>> = {
  cancelled: { type: 'error', code: 'cancelled', message: 'The run was cancelled.' },
  timeout: { type: 'error', code: 'timeout', message: 'The run took longer than it may.' },
  interrupted: { type: 'error', code: 'interrupted', message: 'The worker is stopping.', retryable: true },
}

const failed = (message: string): ErrorEvent => ({ type: 'error', code: sidecarErrors.runtimeError.row.code, message })
const noTerminal = failed('The runtime stopped without a result.')
const invalidEvent = failed('The runtime sent an event that is not valid.')
const eventTooLarge = failed('The runtime sent an event that is too large.')

interface HostOptions {
  readonly log: FastifyBaseLogger
  readonly write: EventWriter
  /** Resolves to the envelope in which linked attachments are replaced by their contents. */
  bring(envelope: RunEnvelope, signal: AbortSignal): Promise<RunEnvelope>
  /** The previous run of this session. The adapter is not called before this has resolved. */
  readonly after: Promise<void> | undefined
  onEnd(outcome: RunOutcome): void
}

/**
 * One run. Whatever its adapter does, the stream ends in time and with exactly one `result` or `error`. The states are `running`, perhaps
 * `stopping` (the adapter was told to stop; its usage still counts), and `ended` (the terminal event is written; the adapter cleans up).
 */
export class HostedRun {
  readonly #envelope: RunEnvelope
  readonly #runtime: Runtime
  readonly #options: HostOptions
  readonly #queue = createLineQueue(() => this.abort('cancelled'))
  readonly #stop = new AbortController()
  readonly #released = Promise.withResolvers<void>()
  #state: 'running' | 'stopping' | 'ended' = 'running'
  #why: Ending | undefined
  #encoder: EventEncoder
  /** The usage of a run is counted once, however often an adapter that is being stopped reports it. */
  #counted = false
  #deadline: NodeJS.Timeout | undefined
  #grace: NodeJS.Timeout | undefined
  #unsubscribe: (() => void) | undefined
  /** Wakes an adapter that waits for room, because the adapter must stop. */
  #goOn: (() => void) | undefined

  constructor(envelope: RunEnvelope, runtime: Runtime, options: HostOptions) {
    this.#envelope = envelope
    this.#runtime = runtime
    this.#options = options
    this.#encoder = this.#encoderFrom(envelope.firstSeq)
  }

  /** True once the terminal event is written. */
  get ended(): boolean {
    return this.#state === 'ended'
  }
  /** Resolves when the adapter has released the session, or its grace period is over. */
  get released(): Promise<void> {
    return this.#released.promise
  }

  /** Starts the run. Call it once. */
  readonly lines = (signal: AbortSignal): AsyncIterable<Buffer> => {
    const onAbort = (): void => this.abort(signal.reason === 'shutdown' ? 'interrupted' : 'cancelled')
    signal.addEventListener('abort', onAbort, { once: true })
    this.#unsubscribe = () => signal.removeEventListener('abort', onAbort)
    if (signal.aborted) onAbort()
    const { timeoutMs, resume, attempt = 1 } = this.#envelope
    this.#deadline = setTimeout(() => this.abort('timeout'), Math.min(timeoutMs, maxTimerMs))
    // Write this event first: a runner keeps the session's bundle until it learns that the sidecar has the conversation.
    if (resume) void this.#take({ type: 'progress', stage: 'resumed' })
    if (attempt > 1 && !this.#runtime.replays) void this.#take(repeated)
    void this.#drive()
    return this.#queue
  }
  abort(why: Ending): void {
    if (this.#state !== 'running') return
    this.#state = 'stopping'
    this.#why = why
    this.#grace = setTimeout(() => {
      this.#finish(endings[why])
      this.#released.resolve()
    }, graceMs)
    this.#goOn?.()
    this.#stop.abort()
  }

  async #drive(): Promise<void> {
    let iterator: AsyncIterator<RuntimeEvent | EventBatch> | undefined
    try {
      if (this.#options.after) await this.#options.after
      if (this.#state === 'running') {
        const { batches } = this.#runtime
        const { signal } = this.#stop
        const given = this.#envelope
        const envelope = given.attachments && hasLinks(given) ? await this.#options.bring(given, signal) : given
        const source = batches ? batches.call(this.#runtime, envelope, signal) : this.#runtime.run(envelope, signal)
        iterator = source[Symbol.asyncIterator]()
        while (!this.ended) {
          const { done, value } = await iterator.next()
          if (done) break
          const room = batches ? this.#takeAll(value as EventBatch) : this.#take(value as RuntimeEvent)
          if (room) await (this.#state === 'running' ? this.#roomOrStop(room) : room)
        }
      }
      this.#finish(noTerminal)
    } catch (error) {
      this.#failed(error)
    }
    try {
      await iterator?.return?.()
    } catch {
      // The run has its last event, so an error in the adapter's clean-up changes nothing.
    }
    clearTimeout(this.#grace)
    this.#released.resolve()
  }
  #failed(err: unknown): void {
    const event = thrown(err)
    if (this.#state === 'running' && event.code === 'runtime_error') {
      this.#options.log.error({ err, runId: this.#envelope.runId }, 'a runtime threw')
    }
    this.#finish(event)
  }
  #roomOrStop(room: Promise<void>): Promise<void> {
    return new Promise((resolve) => {
      this.#goOn = resolve
      void room.then(resolve)
    })
  }
  #takeAll(batch: EventBatch): Promise<void> | undefined {
    let room: Promise<void> | undefined
    for (const item of batch) room = (isTexts(item) ? this.#takeTexts(item) : this.#take(item)) ?? room
    return room
  }
  /** Writes short texts of a model's stream without checking each as an event. Returns what `#take` does. */
  #takeTexts(texts: Texts): Promise<void> | undefined {
    if (this.#state === 'running' && texts.every(isShort)) return this.#queue.push(this.#encoder.texts(texts))
    return this.#takeAll(eventsOf([texts]))
  }
  /** Resolves when the adapter may continue. Undefined: it may continue at once. */
  #take(event: RuntimeEvent): Promise<void> | undefined {
    if (this.#state === 'ended') return undefined
    if (isTerminal(event)) return void this.#finish(event)
    if (this.#state === 'stopping') return this.#takeLast(event)
    const line = this.#encode(event)
    return typeof line === 'string' ? this.#queue.push(line) : void this.#finish(line)
  }
  /** Handles an event of a run that is being stopped: only its usage still counts. */
  #takeLast(event: RuntimeEvent): Promise<void> {
    const line = event?.type === 'usage' && !this.#counted ? this.#encode(event) : undefined
    if (typeof line === 'string') {
      this.#counted = true
      void this.#queue.push(line)
    }
    // Yield to the event loop: an adapter that yields events without end would keep every timer of this process from firing.
    return new Promise((resolve) => void setImmediate(resolve))
  }
  /** Ends the run with this event, unless another reason has already decided its end. */
  #finish(event: TerminalEvent): void {
    if (this.ended) return
    const last = this.#why ? endings[this.#why] : event
    const line = this.#encode(last)
    if (typeof line !== 'string') return this.#finish(line)
    this.#state = 'ended'
    this.#unsubscribe?.()
    clearTimeout(this.#deadline)
    clearTimeout(this.#grace)
    void this.#queue.push(line)
    this.#queue.close()
    this.#grace = setTimeout(this.#released.resolve, graceMs)
    this.#options.onEnd(last.type === 'result' ? 'ok' : last.code === 'cancelled' ? 'cancelled' : 'error')
    // Pass a reason: the default one, an error with a stack, costs more than the rest of this method.
    this.#stop.abort('over')
  }
  /** The event as a line, or the error that must end the run instead. */
  #encode(event: RuntimeEvent): string | ErrorEvent {
    const seq = this.#encoder.next
    const line = this.#options.write(this.#encoder, event)
    // The refused event may have used a stamp, and readers expect no gap.
    if (typeof line !== 'string') this.#encoder = this.#encoderFrom(seq)
    return line
  }
  #encoderFrom(seq: number): EventEncoder {
    return createEventEncoder(this.#envelope.runId, this.#envelope.sessionId, seq)
  }
}

/** The run restarts, so readers discard the events that they have of it. */
const repeated: RuntimeEvent = {
  type: 'progress',
  stage: 'repeated',
  supersedes: 1,
  message: 'This runtime does the turn again from its start.',
}

const isTerminal = (event: RuntimeEvent): event is TerminalEvent => isTerminalType(event?.type)

/** What a client sees of a thrown error: the message of an AppError. The text of any other error stays in the log. */
function thrown(error: unknown): ErrorEvent {
  if (!isAppError(error)) return failed('The runtime failed.')
  const message = error.sentence ?? 'The runtime refused the run.'
  return { type: 'error', code: error.code, message, ...(error.retryable ? { retryable: true } : {}) }
}

/** Checks an adapter's event and writes it as a stamped line, or returns the error that ends the run. Never throws. */
type EventWriter = (encoder: EventEncoder, event: unknown) => string | ErrorEvent

export function createEventWriter(): EventWriter {
  const valid = TypeCompiler.Compile(RuntimeEvent)
  const write = (encoder: EventEncoder, event: RuntimeEvent): string => {
    try {
      return encoder.line(event)
    } catch {
      return encoder.line(withoutCycles(event) as RuntimeEvent)
    }
  }
  return (encoder, event) => {
    try {
      if (!isDelta(event) && !valid.Check(event)) return invalidEvent
      const line = write(encoder, unstamped(event))
      return tooLarge(line) ? eventTooLarge : line
    } catch {
      return invalidEvent
    }
  }
}

// The hot path: there are about twenty deltas per other event.
const isDelta = (event: unknown): event is Extract<RuntimeEvent, { type: 'assistant' }> =>
  typeof event === 'object' &&
  event !== null &&
  (event as { type?: unknown }).type === 'assistant' &&
  typeof (event as { text?: unknown }).text === 'string'

/** True for a text whose line is certainly not too large. */
const isShort = (text: unknown): boolean => typeof text === 'string' && text.length < maxLineBytes / 16

/** Removes stamps: an adapter does not stamp its events, and fields of those names would appear twice in the line. */
function unstamped(event: RuntimeEvent): RuntimeEvent {
  if (!('runId' in event || 'sessionId' in event || 'seq' in event || 'at' in event)) return event
  const { runId: _, sessionId: __, seq: ___, at: ____, ...rest } = event as RuntimeEvent & Record<string, unknown>
  return rest as RuntimeEvent
}

/** Later hops refuse a stream with such a line. A UTF-16 unit is at most three bytes. */
const tooLarge = (line: string): boolean =>
  line.length * 3 > maxLineBytes && Buffer.byteLength(line, 'utf8') > maxLineBytes
