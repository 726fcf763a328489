import type { Readable, Writable } from 'node:stream'
import { linesOf, OversizedLineError, wholeLines } from '#kernel'

/** An unsolicited message of the process. */
export interface Notification {
  readonly method: string
  readonly params: unknown
}

/** JSON-RPC over two pipes, one message per line, without the `jsonrpc` member: the protocol of `codex app-server`. */
export interface RpcClient {
  /** Rejects with `RpcRefused`, `RpcTimeout`, or the error that ended the connection. */
  request<T>(method: string, params: unknown, timeoutMs: number): Promise<T>
  notify(method: string): void
  /** Ends when the process closes its output. Throws `RpcViolation` when the process violates the protocol. */
  readonly notifications: AsyncIterable<Notification>
}

/** The process answered a request with an error. The error's text is never shown, because it may quote a prompt or an address. */
export class RpcRefused extends Error {
  override readonly name = 'RpcRefused'
}
export class RpcTimeout extends Error {
  override readonly name = 'RpcTimeout'
}
/** The process wrote something that is no message, or too much. */
export class RpcViolation extends Error {
  override readonly name = 'RpcViolation'
}
/** The process closed its output. */
export class RpcClosed extends Error {
  override readonly name = 'RpcClosed'
}

/** How many messages wait for their reader before the process must wait. A message has a few hundred bytes. */
const queued = 512
/** A message holds the whole result of a tool. The largest results of MCP servers are images of some MB. */
const maxMessageBytes = 16 * 1024 * 1024
const methodNotFound = -32_601

interface Pending {
  resolve(value: unknown): void
  reject(error: Error): void
}

export function createRpcClient(input: Writable, output: Readable): RpcClient {
  const pending = new Map<number, Pending>()
  const queue: Notification[] = []
  let lastId = 0
  let ended: Error | undefined
  let wakeReader: (() => void) | undefined
  let wakePump: (() => void) | undefined

  const send = (message: object): void => {
    if (input.writable) input.write(`${JSON.stringify(message)}\n`)
  }
  const take = (line: Buffer): void => {
    const message = parse(line)
    if (typeof message.method !== 'string') {
      // A request that is no longer pending has timed out.
      const asked = pending.get(message.id as number)
      pending.delete(message.id as number)
      if (message.error === undefined) asked?.resolve(message.result)
      else asked?.reject(new RpcRefused(textOf(message.error)))
    } else if (message.id !== undefined) {
      // The process requests approvals and asks the user questions. Nobody can answer, so these requests are refused.
      send({ id: message.id, error: { code: methodNotFound, message: `${message.method} is not served` } })
    } else {
      queue.push({ method: message.method, params: message.params })
      wakeReader?.()
    }
  }
  const end = (error: Error): void => {
    ended = error
    for (const { reject } of pending.values()) reject(error)
    pending.clear()
    wakeReader?.()
  }
  const pump = async (): Promise<void> => {
    for await (const chunk of wholeLines(output, maxMessageBytes)) {
      for (const line of linesOf(chunk)) take(line)
      if (queue.length >= queued) await new Promise<void>((resolve) => (wakePump = resolve))
    }
    throw new RpcClosed('the process closed its output')
  }
  // Writing to a process that is gone fails. Its end is noticed at its output instead.
  input.on('error', () => {})
  pump().catch((error: Error) => end(error instanceof OversizedLineError ? new RpcViolation(error.message) : error))

  return {
    request<T>(method: string, params: unknown, timeoutMs: number): Promise<T> {
      if (ended) return Promise.reject(ended)
      const id = ++lastId
      const { promise, resolve, reject } = Promise.withResolvers<T>()
      const timer = setTimeout(() => {
        pending.delete(id)
        reject(new RpcTimeout(`${method} was not answered in ${timeoutMs} ms`))
      }, timeoutMs)
      pending.set(id, { resolve: resolve as (value: unknown) => void, reject })
      send({ id, method, params })
      return promise.finally(() => clearTimeout(timer))
    },
    notify: (method) => send({ method }),
    notifications: {
      async *[Symbol.asyncIterator]() {
        for (;;) {
          const next = queue.shift()
          if (next) {
            if (queue.length < queued) wakePump?.()
            yield next
          } else if (ended instanceof RpcClosed) return
          else if (ended) throw ended
          else await new Promise<void>((resolve) => (wakeReader = resolve))
        }
      },
    },
  }
}

interface Message {
  readonly id?: unknown
  readonly method?: unknown
  readonly params?: unknown
  readonly result?: unknown
  readonly error?: unknown
}

function parse(line: Buffer): Message {
  try {
    const value: unknown = JSON.parse(line.toString('utf8'))
    if (typeof value === 'object' && value !== null && ('method' in value || 'id' in value)) return value
  } catch {
    // The error is thrown below, without the text, which may be anything.
  }
  throw new RpcViolation('the process wrote a line that is not a message')
}

const textOf = (error: unknown): string => String((error as { message?: unknown } | null)?.message ?? 'refused')
