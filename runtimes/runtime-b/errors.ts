import { appError } from '#kernel'

export const notInstalled = appError('runtime_not_installed', 503)
export const unknownModel = appError('unknown_model', 400)
export const unsupportedAttachment = appError('unsupported_attachment', 400)
export const unsupportedLimit = appError('unsupported_limit', 400)
export const runtimeBusy = appError(
  'runtime_busy',
  503,
  'This sidecar executes as many runs of runtime_b at once as it may.',
)
export const toolServerUnavailable = appError(
  'tool_server_unavailable',
  503,
  "The session's tool server cannot be reached, or refuses its token.",
)
export const maxStepsReached = appError('max_steps', 422)
export const invalidOutput = appError('invalid_output', 422)
export const corruptState = appError('invalid_state', 400, 'The body is not a state bundle of runtime_b.')
/** What the model server did; the sentence says what. */
export const modelError = appError('model_error', 502)
/** What Codex did; the sentence says what. */
export const codexFailed = appError('runtime_error', 502)
