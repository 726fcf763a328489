import { AppError, appError } from '#kernel'

/** The name is part of the string that the specification shows. Specification 4.8. */
export const unknownProfile = (name: string): AppError =>
  new AppError(`unknown_profile: ${name}`, 400, { message: 'There is no profile of this name; see GET /api/profiles.' })
export const invalidRunId = appError(
  'invalid run id',
  400,
  'A run id is 1-128 letters, digits, underscores and hyphens.',
)
export const invalidSessionId = appError(
  'invalid session id',
  400,
  'A session id is 1-128 letters, digits, underscores and hyphens.',
)
export const attachmentsTooLarge = appError(
  'attachments_too_large',
  413,
  'The attachments of a run may have 4 MiB together.',
)
export const invalidAttachment = (index: number): AppError =>
  new AppError('invalid_attachment', 400, { message: `body/attachments/${index}/data is not base64.` })
export const runExists = appError('conflict', 409, 'A run with this id exists.')
export const sessionBusy = appError('session_busy', 409, 'The session is executing another run.')
export const queueFull = appError('queue_full', 429, 'As many runs wait for the session as may; try again later.')
export const profileMismatch = appError(
  'session_profile_mismatch',
  409,
  'The session was created with another profile.',
)
export const unknownRun = appError('not_found', 404, 'No such run.')
export const unknownSession = appError('not_found', 404, 'No such session, or it was shut down.')
export const hydrationFailed = appError('hydration_failed', 503, 'The session could not be restored; try again.')
export const webhooksUnavailable = appError(
  'webhooks_unavailable',
  503,
  'This installation has no webhooks; start the run without one.',
)
export const conversationNotFound = appError(
  'conversation_not_found',
  404,
  'This agent has no such conversation; leave conversation_id out to begin one.',
)
export const conversationBusy = appError(
  'conversation_busy',
  409,
  'A run is under way in this conversation; wait until it has ended.',
)
export const conversationEnded = appError(
  'conversation_ended',
  409,
  'The session of this conversation is gone, and its runtime cannot be given the conversation back; begin a new one.',
)
