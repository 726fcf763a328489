import { appError } from '#kernel'

export const noRunner = appError('no_runner', 503)
/** Retryable only when nothing of the request can have arrived. */
export const runnerUnreachable = appError('runner_unreachable', 503, 'The runner cannot be reached; try again.')
export const runnerFailed = appError('runner_failed', 502, 'The runner answered with an error.')
export const invalidRunnerUrl = appError('invalid_request', 400)
