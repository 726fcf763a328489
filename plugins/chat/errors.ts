import { AppError, appError, isAppError } from '#kernel'
import { conversationBusy, conversationEnded, conversationNotFound } from '#contracts/runs'
import { bodyIds, idHeaders, type NamedRun, type Outcome } from './public-run.ts'

const unreachable = 'The agent cannot be reached right now. Send the message again later.'

export const invalidKey = (): AppError =>
  new AppError('unauthorized', 401, {
    message: 'Send a valid key of this agent as a bearer token.',
    headers: { 'www-authenticate': 'Bearer' },
  })
export const notPublished = appError('not_published', 404, 'This agent is not published.')
export const originNotAllowed = appError('origin_not_allowed', 403, 'This agent may not be called from this origin.')
export const rateLimited = appError('rate_limited', 429, 'This key has used up its requests of the last minute.')
const upstream = appError('upstream', 502)
const runLost = appError('lost', 410)
const unavailable = appError('unavailable', 503, unreachable)
const syncTimeout = appError(
  'sync_timeout',
  504,
  'The run takes longer than a synchronous call may; it goes on, and its answer can be fetched later.',
)
const stoppingHere = appError(
  'unavailable',
  503,
  'This server is stopping; the run goes on, and its answer can be fetched later.',
)

export const invalidField = (path: string, message: string): AppError =>
  new AppError('invalid_request', 400, { message: `${path} ${message}`, detail: { issues: [{ path, message }] } })

/** True when a start that failed so has certainly begun nothing; after any other failure the run may exist. */
export const beganNothing = (error: unknown): error is AppError =>
  isAppError(error) && (error.status < 500 || error.retryable)

/** What a client is told of a start that began nothing. A failure of ours says no more than that; a refusal keeps its code. */
export function refusal(cause: AppError): AppError {
  const { code, headers } = cause
  if (code === 'session_busy' || code === 'conversation_busy') return conversationBusy({ cause })
  if (code === 'conversation_not_found') return conversationNotFound({ cause })
  if (code === 'conversation_ended') return conversationEnded({ cause })
  if (code.startsWith('unknown_profile')) return notPublished({ cause })
  if (code === 'upstream') return upstream({ message: unreachable, headers, retryable: true, cause })
  return cause.status < 500 ? cause : unavailable({ headers, retryable: true, cause })
}

/** Why a request has no answer of its run: how the run ended, or why nobody waits for its end any longer. */
export type NoAnswer = Outcome | 'unreachable' | 'timeout' | 'stopping' | 'gone'

/** What a request tells a client whose run has no answer for it, or none yet. It names the run. */
export function noAnswer(ids: NamedRun, reason: NoAnswer, cause?: unknown): AppError {
  const options = { detail: bodyIds(ids), headers: idHeaders(ids), cause }
  if (reason === 'timeout') return syncTimeout(options)
  if (reason === 'stopping' || reason === 'gone') return stoppingHere({ ...options, retryable: true })
  if (reason === 'unreachable') return upstream({ ...options, message: unreachable })
  return (reason.status === 'lost' ? runLost : upstream)({ ...options, message: reason.message })
}
