import { isAppError } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'

type ErrorEvent = Extract<RuntimeEvent, { type: 'error' }>
export type TerminalEvent = Extract<RuntimeEvent, { type: 'result' | 'error' }>

/** Why the host ended a run that its adapter had not ended. */
export type Ending = 'cancelled' | 'timeout' | 'interrupted'

export const endings: Readonly<Record<Ending, ErrorEvent>> = {
  cancelled: { type: 'error', code: 'cancelled', message: 'The run was cancelled.' },
  timeout: { type: 'error', code: 'timeout', message: 'The run took longer than it may.' },
  interrupted: { type: 'error', code: 'interrupted', message: 'The worker is stopping.', retryable: true },
}

const failed = (message: string): ErrorEvent => ({ type: 'error', code: 'runtime_error', message })
export const noTerminal = failed('The runtime stopped without a result.')
export const invalidEvent = failed('The runtime sent an event that is not valid.')
export const eventTooLarge = failed('The runtime sent an event that is too large.')

/** What a client sees of a throw: an AppError says what it means, the text of anything else stays in the log. */
export function thrown(error: unknown): ErrorEvent {
  if (!isAppError(error)) return failed('The runtime failed.')
  const message = error.sentence ?? 'The runtime refused the run.'
  return { type: 'error', code: error.code, message, ...(error.retryable ? { retryable: true } : {}) }
}
