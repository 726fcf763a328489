import { AppError, appError } from '#kernel'

export const conductorUnreachable = appError('upstream', 502, 'The conductor cannot be reached.')
export const keysMismatched = appError(
  'upstream',
  502,
  'The conductor refuses our signature: CHAT_GATEWAY_SIGNING_KEY_CURRENT must be the same on both services, and their clocks within a minute.',
)
const unexpected = (status: number): AppError =>
  new AppError('upstream', 502, { message: `The conductor answered ${status}.`, retryable: status >= 500 })

/** The connection ended before its answer did, or there was none: the same question may be put again. */
export class ConnectionLost extends Error {
  constructor(cause: unknown) {
    super('the connection to the conductor was lost', { cause })
    this.name = 'ConnectionLost'
  }
}

/** What an error answer of the conductor means to whoever dispatches runs. Its own failures and ours are all `upstream`. */
export function refusal(status: number, body: Record<string, unknown> | undefined): AppError {
  if (status === 401) return keysMismatched()
  if (status < 400 || status === 429 || status >= 500) return unexpected(status)
  const { error, message, request_id: _, ...detail } = body ?? {}
  if (typeof error !== 'string') return unexpected(status)
  return new AppError(error, status, { ...(typeof message === 'string' ? { message } : {}), detail })
}
