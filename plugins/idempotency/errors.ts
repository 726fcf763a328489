import { appError } from '#kernel'

export const keyReused = appError(
  'idempotency_key_reused',
  422,
  'This Idempotency-Key was used with another request body; send a new key.',
)
export const inFlight = appError(
  'idempotency_in_flight',
  409,
  'A request with this Idempotency-Key is under way; repeat it when that one has ended.',
)
