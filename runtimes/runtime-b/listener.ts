import type { AppError } from '#kernel'
import type { AppServer } from './app-server.ts'
import { codexFailed, modelError } from './errors.ts'
import type { Notification } from './json-rpc.ts'
import type { Patience } from './patience.ts'

/** Says what the process reports, one after the other. Throws when it ends, or is silent for too long. */
export type Listen = (waitsForTool?: () => boolean) => Promise<Notification>

export function createListener(server: AppServer, { silenceMs, answerMs }: Patience): Listen {
  const notifications = server.rpc.notifications[Symbol.asyncIterator]()
  let silence: Promise<AppError> | undefined
  const whoIsSilent = (): Promise<AppError> =>
    server.rpc.request('thread/loaded/list', {}, answerMs).then(
      () =>
        modelError({
          message: `The model server said nothing for ${Math.round(silenceMs / 1_000)} s.`,
          retryable: true,
        }),
      () => codexFailed({ message: 'Codex does not answer any more.', retryable: true }),
    )
  return async (waitsForTool = () => false) => {
    // Only while we wait: a reader who takes his time is nobody's silence.
    const timer = setTimeout(() => {
      if (waitsForTool()) timer.refresh()
      else silence = whoIsSilent().finally(() => void server.stop())
    }, silenceMs)
    const { done, value } = await notifications.next().finally(() => clearTimeout(timer))
    if (!done) return value
    throw (await silence) ?? codexFailed({ message: 'Codex stopped in the middle of the turn.', retryable: true })
  }
}
