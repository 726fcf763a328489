import { appError, isAppError } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'
import type { Result } from './sdk.ts'

export const notInstalled = appError('runtime_not_installed', 503)
export const unknownModel = appError('unknown_model', 400)
export const unsupportedAttachment = appError('unsupported_attachment', 400)
export const unsafeCredential = appError(
  'unsupported_mcp_credential',
  400,
  "The session's MCP address or token contains ${, which runtime_a cannot pass on.",
)
export const runtimeBusy = appError(
  'runtime_busy',
  503,
  'This sidecar executes as many runs of runtime_a at once as it may.',
)
export const toolServerUnavailable = appError(
  'tool_server_unavailable',
  503,
  "The session's tool server cannot be reached.",
)
export const maxStepsReached = appError('max_steps', 422)
export const invalidOutput = appError('invalid_output', 422, 'The model gave no answer that fits the response format.')
export const modelError = appError('model_error', 502)
export const answerCut = appError('model_error', 502, 'The connection to the model server broke.')
export const processFailed = appError('runtime_error', 502, "The runtime's process ended before its answer.")
export const processSilent = appError('runtime_error', 502, "The runtime's process did not start in time.")

/** What a result says that is none. The vendor's own text stays out: it quotes the model server, which may quote keys. */
export function failureOf({ subtype, api_error_status: status, api_error: kind }: Result, maxSteps: number): Error {
  if (subtype === 'error_max_turns') {
    return maxStepsReached({ message: `The run reached its limit of ${maxSteps} model calls before an answer.` })
  }
  if (subtype === 'error_max_structured_output_retries') return invalidOutput()
  if (subtype !== 'success') return processFailed()
  if (typeof status === 'number') {
    return modelError({ message: `The model server answered ${status}.`, retryable: mayPass(status) })
  }
  return kind === 'connection_failed'
    ? modelError({ message: 'The model server cannot be reached.', retryable: true })
    : modelError({ message: 'The call of the model failed.' })
}

const mayPass = (status: number): boolean => status === 408 || status === 409 || status === 429 || status >= 500

/** The terminal event of a failed run. What is no failure of a known kind goes on to the host. */
export function errorEvent(error: unknown): Extract<RuntimeEvent, { type: 'error' }> {
  if (!isAppError(error)) throw error
  const retryable = error.retryable ? { retryable: true } : {}
  return { type: 'error', code: error.code, message: error.sentence ?? 'The run failed.', ...retryable }
}
