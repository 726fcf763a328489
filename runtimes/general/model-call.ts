import { setTimeout } from 'node:timers/promises'
import {
  APICallError,
  type LanguageModelV4,
  type LanguageModelV4CallOptions,
  type LanguageModelV4StreamPart,
} from '@ai-sdk/provider'
import { modelFailure, reported } from './errors.ts'

type Reader = ReadableStreamDefaultReader<LanguageModelV4StreamPart>

/** A model call whose first meaningful part has arrived. */
export interface OpenCall {
  /** Undefined: the stream ended without one. */
  readonly first: LanguageModelV4StreamPart | undefined
  readonly reader: Reader
  /** Ends the call and its connection, wherever it is. */
  close(): void
}

const backoffMs = [200, 800]
/** A server may ask for more patience than a waiting user has. */
const maxRetryAfterMs = 5_000

/**
 * Calls the model, again after a failure that may pass: at most twice, and only while nothing was streamed, because
 * text that a client has seen cannot be taken back.
 */
export async function openCall(
  model: LanguageModelV4,
  options: LanguageModelV4CallOptions,
  signal: AbortSignal,
): Promise<OpenCall> {
  for (let attempt = 0; ; attempt++) {
    let call: OpenCall | undefined
    try {
      const { stream } = await model.doStream(options)
      const reader = stream.getReader()
      // Also for a provider that does not watch the signal itself: a cancelled reader ends at once.
      const cancel = (): void => void reader.cancel().catch(() => {})
      signal.addEventListener('abort', cancel, { once: true })
      const close = (): void => {
        signal.removeEventListener('abort', cancel)
        cancel()
      }
      call = { first: undefined, reader, close }
      const first = await firstPart(reader)
      if (first?.type === 'error') throw reported(first.error)
      return { first, reader, close }
    } catch (error) {
      call?.close()
      const pause = backoffMs[attempt]
      const failure = modelFailure(error)
      if (signal.aborted || pause === undefined || !failure.transient) throw failure
      await setTimeout(Math.max(pause, retryAfter(error)), undefined, { signal })
    }
  }
}

/** Reads past the parts that only announce something. */
async function firstPart(reader: Reader): Promise<LanguageModelV4StreamPart | undefined> {
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return undefined
    if (value.type === 'error' || value.type === 'finish' || value.type === 'tool-call') return value
    if (value.type === 'text-delta' && value.delta !== '') return value
    // Some reasoning has no text, only a signature.
    if (value.type === 'reasoning-start' || value.type === 'reasoning-delta') return value
  }
}

function retryAfter(error: unknown): number {
  const seconds = APICallError.isInstance(error) ? Number(error.responseHeaders?.['retry-after']) : 0
  return seconds > 0 ? Math.min(seconds * 1_000, maxRetryAfterMs) : 0
}
