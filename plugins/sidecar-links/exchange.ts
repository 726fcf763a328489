import type { Dispatcher } from 'undici'
import { exchange as send, type Reply as HttpReply } from '#kit'
import { sidecarLost, sidecarUnreachable } from './errors.ts'

export { readBody } from '#kit'

/** A run's stream is read to its end, so nobody has to say that only the end is to come. */
export type Reply = Omit<HttpReply, 'expectEnd'>

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
