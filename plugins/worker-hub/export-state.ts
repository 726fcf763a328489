import type { Mailbox } from './mailbox.ts'
import type { Presence } from './presence.ts'
import type { StateCopy } from './state.ts'

/** How long a worker may take to pack its state and send it. */
const exportMs = 30_000

/** Asks a worker for its state. Resolves when it has answered, or is not going to. */
export function askForState(
  mailbox: Mailbox,
  presence: Presence,
  state: StateCopy,
  closed: AbortSignal,
): Promise<void> {
  return new Promise((resolve) => {
    const command = mailbox.push({ kind: 'export_state' })
    const settle = (): void => {
      clearTimeout(late)
      stopListening()
      stopWatching()
      closed.removeEventListener('abort', settle)
      mailbox.withdraw(command)
      resolve()
    }
    const late = setTimeout(settle, exportMs)
    const stopListening = state.onTaken(settle)
    const stopWatching = presence.watch(settle)
    closed.addEventListener('abort', settle)
  })
}
