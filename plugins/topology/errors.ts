import { appError } from '#kernel'

export const rateLimited = appError('rate_limited', 429, 'Too many readings of the topology; wait as Retry-After says.')
export const unknownRunner = appError('not_found', 404, 'No runner of this conductor has this hash.')
