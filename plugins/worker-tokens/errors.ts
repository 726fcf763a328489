import { appError } from '#kernel'

export const workerTokenUnavailable = appError(
  'worker_token_unavailable',
  503,
  'Workers cannot be given tokens: set AGENT_ORC_WORKER_SIGNING_KEY_CURRENT (base64 of at least 32 random bytes) and restart.',
)

// Specification 7: the text starts so, and says which case.
export const missingToken = appError('invalid or missing worker token: missing', 401)
export const malformedToken = appError('invalid or missing worker token: malformed', 401)
export const expiredToken = appError('invalid or missing worker token: expired', 401)
