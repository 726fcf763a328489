import { appError } from '#kernel'

export const unknownRuntime = appError('unknown_runtime', 400)
export const runtimeRequired = appError('runtime_required', 400, 'Say which runtime: ?runtime=NAME.')
export const invalidSessionId = appError('invalid session id', 400)
export const sessionBusy = appError('session_busy', 409, 'A run of this session is still under way.')
export const stateMissing = appError(
  'session_state_missing',
  409,
  'The conversation of this session is not here: hydrate it first.',
)
export const nothingToExport = appError('not_found', 404, 'This session has no state here.')
export const noState = appError('state_not_supported', 400, 'This runtime keeps no state that could be taken over.')
export const emptyBundle = appError('invalid_state', 400, 'The body is empty.')
