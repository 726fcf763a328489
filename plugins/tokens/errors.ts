import { appError } from '#kernel'

export const keyHashingUnavailable = appError(
  'key_hashing_unavailable',
  503,
  'Keys cannot be issued or checked: set AGENT_API_KEY_PEPPER (base64 of at least 32 random bytes) and restart.',
)
