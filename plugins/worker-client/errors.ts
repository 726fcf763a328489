import { appError, isAppError } from '#kernel'

/** Nobody answered, or not now: the same request may be sent again. */
export const runnerAway = appError('runner_unreachable', 503, 'The runner cannot be reached.')
/** The runner answered, and will answer the same again. */
export const runnerRefused = appError('runner_refused', 502)
/** The runner does not want this worker any more, or speaks another protocol: it must end. */
export const workerRefused = appError('worker_refused', 401)
export const isRefusal = (error: unknown): boolean => isAppError(error) && error.code === 'worker_refused'

export const stateTooLarge = appError('state_too_large', 413, "The session's state is larger than 64 MiB.")
