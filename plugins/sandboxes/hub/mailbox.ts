import type { AppError } from '#kernel'
import type { WorkerCommand } from '#contracts/wire/worker'
import { sandboxErrors } from '../errors.ts'

/** A command as it is sent: an envelope may have tens of MiB, so it is serialized once, however often it is asked for. */
export interface Letter {
  readonly id: number
  readonly kind: WorkerCommand['kind']
  readonly json: Buffer
}

type Unnumbered<C> = C extends WorkerCommand ? Omit<C, 'id'> : never

export interface Poll {
  /** Acknowledges every command up to this id. */
  readonly after: number
  readonly waitMs: number
  readonly signal: AbortSignal
}

/**
 * The queue of commands for one worker. Each answer to a poll holds all commands that no poll has acknowledged yet, so a lost answer is repeated.
 * Commands are in order. The worker decides what it acknowledges, so an answer is repeated once a second at most.
 */
export interface Mailbox {
  push(command: Unnumbered<WorkerCommand>): number
  /** Removes a command, so that no further answer holds it. True when an answer has held it already. */
  withdraw(id: number): boolean
  /** Resolves to the waiting commands; empty when none comes in time or the caller leaves. A newer poll ends an older one. */
  poll(poll: Poll): Promise<readonly Letter[]>
  /** Answers an open poll with nothing. */
  endPoll(): void
  /** Removes every command up to this id, because the worker has received them. */
  acknowledge(id: number): void
  /** Resolves when an answer with this command was sent, or when `signal` aborts. */
  taken(id: number, signal: AbortSignal): Promise<void>
  /** Called when an answer was sent. */
  left(commands: readonly Letter[]): void
  /** Whether a further tool may be called. */
  readonly hasRoom: boolean
  close(error: AppError): void
}

/** Milliseconds until commands that were answered but not acknowledged are answered again. Only a worker that lost an answer needs that. */
const repeatMs = 1_000
/** With so many bytes of tool calls in the queue no further tool is called. */
const mostToolBytes = 32 * 1024 * 1024
/** Likewise with so many in the queues of all workers of a tenant, which may have a hundred. */
const mostToolBytesOfTenant = 64 * 1024 * 1024
/** Likewise with so many commands. A worker that takes its commands has a few. */
const mostCommands = 1_000

/** An open poll. */
interface HeldPoll {
  readonly answered: Promise<readonly Letter[]>
  answer(commands: readonly Letter[]): void
  refuse(error: AppError): void
}

/** Counts the bytes of the tool calls that are in all queues of each tenant. */
export class WaitingTools {
  readonly #bytes = new Map<string, number>()

  hasRoom(tenantId: string): boolean {
    return (this.#bytes.get(tenantId) ?? 0) < mostToolBytesOfTenant
  }
  add(tenantId: string, bytes: number): void {
    const sum = (this.#bytes.get(tenantId) ?? 0) + bytes
    if (sum > 0) this.#bytes.set(tenantId, sum)
    else this.#bytes.delete(tenantId)
  }
}

export function createMailbox(tenantId: string, waitingTools: WaitingTools): Mailbox {
  const queue = createQueue(tenantId, waitingTools)
  let last = 0
  /** The highest id that an answer had, and when the last answer was given. */
  let answered = 0
  let answeredAt = -Infinity
  /** The open poll, and the one that waits until an answer may be repeated. */
  const waiting = createPlace()
  const repeating = createPlace()
  /** How often an open poll was ended. */
  let ends = 0
  let closed: AppError | undefined
  const departures = new Map<number, () => void>()

  /** The commands that an answer may have: none behind a `bind`, because after that the worker has another session. */
  const ready = (): readonly Letter[] => {
    const bind = queue.letters.findIndex(({ kind }) => kind === 'bind')
    const commands = bind < 0 ? queue.letters : queue.letters.slice(0, bind + 1)
    answered = Math.max(answered, commands.at(-1)?.id ?? 0)
    answeredAt = performance.now()
    return commands
  }
  const acknowledge = (id: number): void => queue.keep((letter) => letter.id > id)
  return {
    push(command) {
      const id = ++last
      queue.add({ id, kind: command.kind, json: Buffer.from(JSON.stringify({ id, ...command })) })
      waiting.answer(ready)
      return id
    },
    withdraw(id) {
      queue.keep((letter) => letter.id !== id)
      return id <= answered
    },
    async poll({ after, waitMs, signal }) {
      if (closed) throw closed
      repeating.refuse(sandboxErrors.pollSuperseded())
      waiting.refuse(sandboxErrors.pollSuperseded())
      acknowledge(after)
      const pauseMs = answeredAt + repeatMs - performance.now()
      const before = ends
      if (pauseMs > 0 && queue.letters.some(({ id }) => id <= answered)) await repeating.hold(pauseMs, signal)
      if (signal.aborted || ends > before) return []
      if (queue.letters.length > 0 || waitMs === 0) return ready()
      return waiting.hold(waitMs, signal)
    },
    endPoll() {
      ends++
      repeating.answer(() => [])
      waiting.answer(() => [])
    },
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
    get hasRoom() {
      return queue.hasRoom
    },
    close(error) {
      if (closed) return
      closed = error
      queue.keep(() => false)
      repeating.refuse(error)
      waiting.refuse(error)
      for (const depart of departures.values()) depart()
    },
  }
}

/** The commands of one worker. Their tool calls are counted for its tenant. */
function createQueue(tenantId: string, waitingTools: WaitingTools) {
  let letters: readonly Letter[] = []
  let toolBytes = 0
  const set = (next: readonly Letter[]): void => {
    const bytes = next.reduce((sum, { kind, json }) => sum + (kind === 'tool' ? json.length : 0), 0)
    waitingTools.add(tenantId, bytes - toolBytes)
    letters = next
    toolBytes = bytes
  }
  return {
    get letters() {
      return letters
    },
    add: (letter: Letter): void => set([...letters, letter]),
    keep: (isKept: (letter: Letter) => boolean): void => set(letters.filter(isKept)),
    get hasRoom() {
      return toolBytes < mostToolBytes && letters.length < mostCommands && waitingTools.hasRoom(tenantId)
    },
  }
}

/** A place for one open poll. */
function createPlace() {
  let held: HeldPoll | undefined
  return {
    hold(waitMs: number, signal: AbortSignal): Promise<readonly Letter[]> {
      const mine = hold(waitMs, signal, () => {
        if (held === mine) held = undefined
      })
      held = mine
      return mine.answered
    },
    answer: (commands: () => readonly Letter[]): void => held?.answer(commands()),
    refuse: (error: AppError): void => held?.refuse(error),
  }
}

/** Holds a poll open. It is answered with no commands after `waitMs`, or when the caller leaves. `onSettled` runs before the caller gets the answer. */
function hold(waitMs: number, signal: AbortSignal, onSettled: () => void): HeldPoll {
  const { promise: answered, resolve, reject } = Promise.withResolvers<readonly Letter[]>()
  const settle = (): void => {
    clearTimeout(late)
    signal.removeEventListener('abort', empty)
    onSettled()
  }
  const answer = (commands: readonly Letter[]): void => {
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
