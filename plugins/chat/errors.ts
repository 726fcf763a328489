import { AppError, appError } from '#kernel'

export const invalidKey = (): AppError =>
  new AppError('unauthorized', 401, {
    message: 'Send a valid key of this agent as a bearer token.',
    headers: { 'www-authenticate': 'Bearer' },
  })
export const notPublished = appError('not_published', 404, 'This agent is not published.')
export const originNotAllowed = appError('origin_not_allowed', 403, 'This agent may not be called from this origin.')
export const rateLimited = appError('rate_limited', 429, 'This key has used up its requests of the last minute.')
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
export const upstream = appError('upstream', 502)
export const runLost = appError('lost', 410)
export const syncTimeout = appError(
  'sync_timeout',
  504,
  'The run takes longer than a synchronous call may; it goes on, and its answer can be fetched later.',
)
export const stoppingHere = appError(
  'unavailable',
  503,
  'This server is stopping; the run goes on, and its answer can be fetched later.',
)

const invalidField = (path: string, message: string): AppError =>
  new AppError('invalid_request', 400, { message: `${path} ${message}`, detail: { issues: [{ path, message }] } })

export const invalidText = (path: string): AppError => invalidField(path, 'must not contain NUL characters')
export const invalidAttachment = (index: number): AppError =>
  invalidField(`body/attachments/${index}/data`, 'must be base64')
