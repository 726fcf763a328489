import { errorTable, isAppError } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'
import type { Result } from './sdk.ts'

export const runtimeAErrors = errorTable('runtime_a', {
  runtimeNotInstalled: {
    status: 503,
    about: 'The package of the vendor is not installed here; the sentence says how to install it.',
  },
  unknownModel: { status: 400, about: 'The profile names a model that this runtime cannot run.' },
  unsupportedAttachment: { status: 400, about: 'The model does not accept attachments of this type.' },
  unsupportedMcpCredential: {
    status: 400,
    message: "The session's MCP address or token contains ${, which runtime_a cannot pass on.",
  },
  runtimeBusy: {
    status: 503,
    retry: true,
    message:
      'Too many runs of this tenant wait for this sidecar to execute them with runtime_a, or nothing is free for a delegated one.',
  },
  toolServerUnavailable: { status: 503, retry: true, message: "The session's tool server cannot be reached." },
  maxSteps: { status: 422, about: 'The run reached its limit of model calls before an answer.' },
  invalidOutput: { status: 422, message: 'The model gave no answer that matches the response format.' },
  modelError: { status: 502, retry: 'as-said', about: 'The model server failed; the sentence says why.' },
  runtimeError: {
    status: 502,
    retry: 'as-said',
    message: "The runtime's process ended before its answer.",
    about: "The runtime's process ended before its answer, or did not start in time.",
  },
})

/** Failures of the model server and of the process, each with a sentence of ours. */
export const answerCut = () =>
  runtimeAErrors.modelError({ message: 'The connection to the model server broke.', retryable: true })
export const processSilent = () =>
  runtimeAErrors.runtimeError({ message: "The runtime's process did not start in time.", retryable: true })

/** The error of a failed result, without the vendor's own text: it quotes the model server, which may quote keys. */
export function failureOf({ subtype, api_error_status: status, api_error: kind }: Result, maxSteps: number): Error {
  if (subtype === 'error_max_turns') {
    return runtimeAErrors.maxSteps({
      message: `The run reached its limit of ${maxSteps} model calls before an answer.`,
    })
  }
  if (subtype === 'error_max_structured_output_retries') return runtimeAErrors.invalidOutput()
  if (subtype !== 'success') return runtimeAErrors.runtimeError()
  if (typeof status === 'number') {
    return runtimeAErrors.modelError({ message: `The model server answered ${status}.`, retryable: mayPass(status) })
  }
  return kind === 'connection_failed'
    ? runtimeAErrors.modelError({ message: 'The model server cannot be reached.', retryable: true })
    : runtimeAErrors.modelError({ message: 'The call of the model failed.' })
}

const mayPass = (status: number): boolean => status === 408 || status === 409 || status === 429 || status >= 500

/** The terminal event of a failed run. An unknown kind of error is rethrown to the host. */
export function errorEvent(error: unknown): Extract<RuntimeEvent, { type: 'error' }> {
  if (!isAppError(error)) throw error
  const retryable = error.retryable ? { retryable: true } : {}
  return { type: 'error', code: error.code, message: error.sentence ?? 'The run failed.', ...retryable }
}
