import type { AppError } from '#kernel'
import type { StateBundle } from '#contracts/runtime'
import type { SessionMemory } from '#contracts/workers'
import type { Mailbox } from './mailbox.ts'
import type { Presence } from './presence.ts'

/** Counts states once a runner has registered its counter. */
export class CountedMemory implements SessionMemory {
  #runner: SessionMemory | undefined

  countIn(runner: SessionMemory): void {
    this.#runner = runner
  }
  hold(tenantId: string, sessionId: string, bytes: number): void {
    this.#runner?.hold(tenantId, sessionId, bytes)
  }
}

/** The runner's copy of a worker's state. */
export interface StateCopy {
  readonly bundle: StateBundle | undefined
  readonly rev: number
  /** Why the runner has no copy of the newest state. An older copy is not kept, because it would be mistaken for the newest. */
  readonly refused: AppError | undefined
  /** Sets a copy of the runner. It wins over any copy on the disk of a sandbox. */
  set(bundle: StateBundle | undefined): void
  /** Stores a copy that the worker uploaded. An older copy never replaces a newer one. */
  take(bundle: StateBundle | undefined, rev: number): void
  /** Drops the copy, because there was no room for the worker's newest state. */
  refuse(why: AppError): void
  /** Calls back at the worker's next message about its state. Returns a function that stops listening. */
  onTaken(listener: () => void): () => void
}

/** `rev` is the revision of the former worker's copy, if there was one. */
export function createStateCopy(rev = 0): StateCopy {
  let bundle: StateBundle | undefined
  let refused: AppError | undefined
  const listeners = new Set<() => void>()
  return {
    get bundle() {
      return bundle
    },
    get rev() {
      return rev
    },
    get refused() {
      return refused
    },
    set(given) {
      // Workers count on from the revision that they started with. A time in ms is above the count of any sandbox that outlived its runner.
      rev = Math.max(rev + 1, Date.now())
      bundle = given
      refused = undefined
    },
    refuse(why) {
      bundle = undefined
      refused = why
      for (const tell of listeners) tell()
    },
    take(given, at) {
      if (at >= rev) {
        rev = at
        bundle = given
        refused = undefined
      }
      for (const tell of listeners) tell()
    },
    onTaken(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
  }
}

/** How long a worker may take to pack its state and send it. */
const exportMs = 30_000

/** Asks a worker to upload its state. Resolves when the worker has answered, or can no longer answer. */
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
