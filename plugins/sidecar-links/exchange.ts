import type { Dispatcher } from 'undici'
import { exchange as send, type Reply } from '#http-exchange'
import { sidecarLost, sidecarUnreachable } from './errors.ts'

export { readBody, type Reply } from '#http-exchange'

/** One exchange with a sidecar. Only when no answer began may it be sent again. */
export const exchange = (
  dispatcher: Dispatcher,
  request: Dispatcher.DispatchOptions,
  signal: AbortSignal,
): Promise<Reply> =>
  send(dispatcher, request, {
    signal,
    lost: (cause, answered) => (answered ? sidecarLost({ cause }) : sidecarUnreachable({ cause, retryable: true })),
  })
