import { type AppError, isAppError } from '#kernel'
import { billingErrors } from '#contracts/billing'
import { runErrors } from '#contracts/run-errors'
import { chatErrors, unreachable } from './errors.ts'
import { bodyIds, idHeaders, type NamedRun, type Outcome } from './public-run.ts'

const stoppingHere = 'This server is stopping; the run goes on, and its answer can be fetched later.'

/** True when a start that failed with this error has certainly begun nothing. After any other failure the run may exist. */
export const beganNothing = (error: unknown): error is AppError =>
  isAppError(error) && (error.status < 500 || error.retryable)

/** The client's error for a start that began nothing. A failure of the server reveals no details; a refusal keeps its code. */
export function refusal(cause: AppError): AppError {
  const { code, headers } = cause
  if (code === 'session_busy' || code === 'conversation_busy') return runErrors.conversationBusy({ cause })
  if (code === 'conversation_not_found') return runErrors.conversationNotFound({ cause })
  if (code === 'conversation_ended') return runErrors.conversationEnded({ cause })
  if (code.startsWith('unknown_profile')) return chatErrors.notPublished({ cause })
  // Which budget is exhausted, and how large it is, concerns the tenant only.
  if (code === billingErrors.budgetExceeded.row.code)
    return billingErrors.budgetExceeded({ message: 'This agent has used up its budget; try again later.', cause })
  if (code === 'upstream') return chatErrors.upstream({ message: unreachable, headers, retryable: true, cause })
  return cause.status < 500 ? cause : chatErrors.unavailable({ headers, cause })
}

/** Why a request has no answer: how its run ended, or why nobody waits for its end any longer. */
export type NoAnswer = Outcome | 'unreachable' | 'timeout' | 'stopping' | 'gone'

/** The client's error when its run has no answer, or none yet. It names the run. */
export function noAnswer(ids: NamedRun, reason: NoAnswer, cause?: unknown): AppError {
  const options = { detail: bodyIds(ids), headers: idHeaders(ids), cause }
  if (reason === 'timeout') return chatErrors.syncTimeout(options)
  if (reason === 'stopping' || reason === 'gone') return chatErrors.unavailable({ ...options, message: stoppingHere })
  if (reason === 'unreachable') return chatErrors.upstream({ ...options, message: unreachable })
  return (reason.status === 'lost' ? chatErrors.lost : chatErrors.upstream)({ ...options, message: reason.message })
}
