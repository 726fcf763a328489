import { appError } from '#kernel'

export const noRunner = appError('no_runner', 503, 'No runner that supports this runtime is live; try again.')
export const runnerUnreachable = appError('runner_unreachable', 503, 'The runner cannot be reached; try again.')
export const runnerFailed = appError('runner_failed', 502, 'The runner answered with an error.')
