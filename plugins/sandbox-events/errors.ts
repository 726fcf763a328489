import { appError } from '#kernel'

export const unknownProvider = appError('not_found', 404, 'No sandbox provider of this name sends events here.')
export const unreadableEvent = appError('unreadable_event', 400, 'The body cannot be read, or is larger than 64 KiB.')
export const rateLimited = appError(
  'rate_limited',
  429,
  'Too many deliveries from this address; wait as Retry-After says.',
)
