import { appError, isAppError } from '#kernel'

export const noSandboxSubstrate = appError('no_sandbox_substrate', 503)
export const sandboxStartFailed = appError('sandbox_start_failed', 503, 'The sandbox could not be started.')
/** As a worker says it. The conductor brings its copy of the conversation then. */
export const sessionStateMissing = appError(
  'session_state_missing',
  409,
  'The conversation of the session is not here.',
)
export const sandboxUnreachable = appError('sandbox_unreachable', 503, 'The sandbox provider does not answer.')
export const sessionShutDown = appError('session_shutdown', 409, 'The session was shut down.')
export const runnerStopping = appError('runner_stopping', 503, 'The runner is shutting down.')

/** What the caller can act on by its own name; anything else is a start that failed, perhaps for a reason told in a sentence. */
const own: ReadonlySet<string> = new Set([
  'invalid_sandbox',
  'no_sandbox_substrate',
  'runner_stopping',
  'sandbox_start_failed',
  'session_shutdown',
  'worker_token_failed',
  'worker_token_unavailable',
])

export function asStartFailure(cause: unknown): Error {
  if (isAppError(cause) && own.has(cause.code)) return cause
  const sentence = isAppError(cause) ? cause.sentence : undefined
  return sandboxStartFailed({
    cause,
    retryable: true,
    ...(sentence === undefined ? {} : { message: `The sandbox could not be started: ${sentence}` }),
  })
}

export const isStartFailure = (error: unknown): boolean => isAppError(error) && error.code === 'sandbox_start_failed'
export const isGone = (error: unknown): boolean => isAppError(error) && error.code === 'sandbox_gone'
