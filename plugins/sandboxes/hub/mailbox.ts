import type { AppError } from '#kernel'
import type { WorkerCommand } from '#contracts/wire/worker'
import { sandboxErrors } from '../errors.ts'

type Unnumbered<C> = C extends WorkerCommand ? Omit<C, 'id'> : never

export interface Poll {
  /** Acknowledges every command up to this id. */
  readonly after: number
  readonly waitMs: number
  readonly signal: AbortSignal
}

/**
 * The queue of commands for one worker. Each answer to a poll holds all commands that no poll has acknowledged yet, so a lost answer is repeated.
 * Commands are in order.
 */
export interface Mailbox {
  push(command: Unnumbered<WorkerCommand>): number
  /** Removes a command, so that no further answer holds it. True when an answer has held it already. */
  withdraw(id: number): boolean
  /** Resolves to the waiting commands; empty when none comes in time or the caller leaves. A newer poll ends an older one. */
  poll(poll: Poll): Promise<readonly WorkerCommand[]>
  /** Answers an open poll with nothing. */
  endPoll(): void
  /** Removes every command up to this id, because the worker has received them. */
  acknowledge(id: number): void
  /** Resolves when an answer with this command was sent, or when `signal` aborts. */
  taken(id: number, signal: AbortSignal): Promise<void>
  /** Called when an answer was sent. */
  left(commands: readonly WorkerCommand[]): void
  close(error: AppError): void
}

/** An open poll. */
interface HeldPoll {
  readonly answered: Promise<readonly WorkerCommand[]>
  answer(commands: readonly WorkerCommand[]): void
  refuse(error: AppError): void
}

export function createMailbox(): Mailbox {
  let queue: WorkerCommand[] = []
  let last = 0
  /** The highest id that an answer had. */
  let answered = 0
  let waiting: HeldPoll | undefined
  let closed: AppError | undefined
  const departures = new Map<number, () => void>()

  /** The commands that an answer may have: none behind a `bind`, because after that the worker has another session. */
  const ready = (): readonly WorkerCommand[] => {
    const bind = queue.findIndex(({ kind }) => kind === 'bind')
    const commands = bind < 0 ? [...queue] : queue.slice(0, bind + 1)
    answered = Math.max(answered, commands.at(-1)?.id ?? 0)
    return commands
  }
  const acknowledge = (id: number): void => {
    queue = queue.filter((command) => command.id > id)
  }
  return {
    push(command) {
      const id = ++last
      queue.push({ id, ...command } as WorkerCommand)
      waiting?.answer(ready())
      return id
    },
    withdraw(id) {
      queue = queue.filter((command) => command.id !== id)
      return id <= answered
    },
    async poll({ after, waitMs, signal }) {
      if (closed) throw closed
      waiting?.refuse(sandboxErrors.pollSuperseded())
      acknowledge(after)
      if (queue.length > 0 || waitMs === 0 || signal.aborted) return ready()
      const mine = hold(waitMs, signal, () => {
        if (waiting === mine) waiting = undefined
      })
      waiting = mine
      return mine.answered
    },
    endPoll: () => waiting?.answer([]),
    acknowledge,
    taken: (id, signal) =>
      new Promise((resolve) => {
        const settle = (): void => {
          departures.delete(id)
          signal.removeEventListener('abort', settle)
          resolve()
        }
        if (closed) return resolve()
        signal.addEventListener('abort', settle)
        departures.set(id, settle)
      }),
    left(commands) {
      for (const { id } of commands) departures.get(id)?.()
    },
    close(error) {
      if (closed) return
      closed = error
      queue = []
      waiting?.refuse(error)
      for (const depart of departures.values()) depart()
    },
  }
}

/** Holds a poll open. It is answered with no commands after `waitMs`, or when the caller leaves. `onSettled` runs before the caller gets the answer. */
function hold(waitMs: number, signal: AbortSignal, onSettled: () => void): HeldPoll {
  const { promise: answered, resolve, reject } = Promise.withResolvers<readonly WorkerCommand[]>()
  const settle = (): void => {
    clearTimeout(late)
    signal.removeEventListener('abort', empty)
    onSettled()
  }
  const answer = (commands: readonly WorkerCommand[]): void => {
    settle()
    resolve(commands)
  }
  const empty = (): void => answer([])
  const late = setTimeout(empty, waitMs)
  signal.addEventListener('abort', empty, { once: true })
  return {
    answered,
    answer,
    refuse(error) {
      settle()
      reject(error)
    },
  }
}
