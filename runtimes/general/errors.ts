import { APICallError, UnsupportedFunctionalityError } from '@ai-sdk/provider'
import { errorTable, isAppError } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'

export const generalErrors = errorTable('general', {
  unknownModel: { status: 400, about: 'No model provider of this server has the model in the profile.' },
  invalidState: { status: 400, message: 'The body is not a state bundle of the general runtime.' },
  maxSteps: { status: 422, about: 'The run reached its limit of model calls before an answer.' },
  invalidOutput: { status: 422, about: 'The model gave no answer that matches the response format.' },
  modelError: { status: 502, retry: 'as-said', about: 'The model server failed; the sentence says why.' },
  toolServerUnavailable: { status: 503, retry: true, message: "The session's tool server cannot be reached." },
})

interface FailureOptions {
  /** A client may try the run again. */
  readonly retryable?: boolean
  /** The same call may work a moment later. */
  readonly transient?: boolean
  /** The prompt is longer than the model takes. */
  readonly tooLong?: boolean
  /** Details for the log. They never hold the text of the exception, which may quote keys or prompts. */
  readonly details?: Readonly<Record<string, unknown>>
  readonly cause?: unknown
}

/** A failed model call, with the sentence that a client sees. */
export class ModelFailure extends Error {
  readonly retryable: boolean
  readonly transient: boolean
  readonly tooLong: boolean
  readonly details: Readonly<Record<string, unknown>>
  constructor(sentence: string, options: FailureOptions = {}) {
    super(sentence, { cause: options.cause })
    this.name = 'ModelFailure'
    this.retryable = options.retryable ?? false
    this.transient = options.transient ?? false
    this.tooLong = options.tooLong ?? false
    this.details = options.details ?? {}
  }
}

/** Turns anything that a provider throws into a failure with a sentence: an HTTP status, a broken connection, or an unknown failure. */
export function modelFailure(error: unknown): ModelFailure {
  if (error instanceof ModelFailure) return error
  if (UnsupportedFunctionalityError.isInstance(error)) {
    const details = { functionality: error.functionality }
    return new ModelFailure('The model does not accept something in this run, for example an attachment.', {
      cause: error,
      details,
    })
  }
  if (!APICallError.isInstance(error)) {
    return new ModelFailure('The call of the model failed.', { cause: error, details: { err: error } })
  }
  const { statusCode: status, isRetryable: transient } = error
  const cause = (error.cause as { code?: unknown } | undefined)?.code
  const options = { cause: error, retryable: transient, transient, details: { status, cause } }
  if (status === undefined) return new ModelFailure('The model server cannot be reached.', options)
  // The server answered 2xx, but the answer broke off or was not in the provider's format.
  if (status < 300) {
    const sentence = transient
      ? 'The connection to the model server broke.'
      : 'The model server sent an invalid answer.'
    return new ModelFailure(sentence, options)
  }
  const tooLong = refusals.has(status) && saysTooLong(error.data, `${error.message} ${error.responseBody ?? ''}`)
  return new ModelFailure(`The model server answered ${status}${reason(error.data)}.`, { ...options, tooLong })
}

/** Statuses with which a model server refuses a prompt. A limit of tokens per minute is 429 instead. */
const refusals: ReadonlySet<number> = new Set([400, 413, 422])
/** The words by which OpenAI and Groq, Anthropic, vLLM, llama.cpp, Bedrock and Gemini say that a prompt is too long. */
const tooLongWords =
  /context[ _-]?(?:length|window|size)|prompt is too long|maximum context|input (?:is )?too long|too many (?:input )?tokens|token count .{0,40}exceeds|reduce the length/i
/** How many characters of an error body are searched. */
const maxLooked = 4_000

function saysTooLong(data: unknown, text: string): boolean {
  const error = (data as { error?: unknown } | undefined)?.error ?? data
  const { code, message } = (typeof error === 'object' && error !== null ? error : {}) as Record<string, unknown>
  if (code === 'context_length_exceeded') return true
  return tooLongWords.test(`${typeof message === 'string' ? message : ''} ${text}`.slice(0, maxLooked))
}

/** The failure that a model server reported inside its stream. */
export const reported = (error: unknown): ModelFailure =>
  APICallError.isInstance(error)
    ? modelFailure(error)
    : new ModelFailure(`The model server reported an error while it answered${reason(error)}.`, {
        cause: error,
        retryable: true,
        tooLong: saysTooLong(error, typeof error === 'string' ? error : ''),
      })

/** The vendor's own code, e.g. ` (model_not_found)`. A plain word says what to fix and cannot carry a key. */
function reason(data: unknown): string {
  const error = (data as { error?: unknown } | undefined)?.error ?? data
  const { code, type } = (typeof error === 'object' && error !== null ? error : {}) as {
    code?: unknown
    type?: unknown
  }
  const word = [code, type].find((value) => typeof value === 'string' && /^[a-z][a-z_]{2,63}$/.test(value))
  return word === undefined ? '' : ` (${String(word)})`
}

/** The terminal event of a failed run. An unknown kind of failure is a bug, and is thrown to the host. */
export function errorEvent(
  error: unknown,
  log: (details: Readonly<Record<string, unknown>>) => void,
): Extract<RuntimeEvent, { type: 'error' }> {
  if (error instanceof ModelFailure) {
    log({ reason: error.message, ...error.details })
    return {
      type: 'error',
      code: generalErrors.modelError.row.code,
      message: error.message,
      retryable: error.retryable,
    }
  }
  if (!isAppError(error)) throw error
  const retryable = error.retryable ? { retryable: true } : {}
  return { type: 'error', code: error.code, message: error.sentence ?? 'The run failed.', ...retryable }
}
