import { randomUUID } from 'node:crypto'
import type { ToolResult } from '#contracts/tools'
import type { Mailbox } from './mailbox.ts'
import type { Presence } from './presence.ts'

/** How much longer than the worker this side waits: the worker's own timeout gives the better error message. */
const graceMs = 1_000

export interface WorkerToolCalls {
  call(
    name: string,
    input: Readonly<Record<string, unknown>>,
    options: { readonly signal: AbortSignal; readonly timeoutMs: number },
  ): Promise<ToolResult>
  /** False when nobody waits for it. */
  answer(callId: string, result: ToolResult): boolean
  close(): void
}

const failed = (content: string): ToolResult => ({ ok: false, content })
const gone = failed('The sandbox has left.')

/** Tool calls under way in one worker. */
export function createWorkerToolCalls(mailbox: Mailbox, presence: Presence): WorkerToolCalls {
  const waiting = new Map<string, (result: ToolResult) => void>()
  let closed = false
  return {
    call(name, input, { signal, timeoutMs }) {
      if (closed) return Promise.resolve(gone)
      if (signal.aborted) return Promise.resolve(failed('The call was cancelled.'))
      return new Promise((resolve) => {
        const callId = randomUUID()
        const settle = (result: ToolResult): void => {
          waiting.delete(callId)
          clearTimeout(late)
          stopWatching()
          signal.removeEventListener('abort', cancel)
          resolve(result)
        }
        const giveUp = (content: string): void => {
          if (mailbox.withdraw(command)) mailbox.push({ kind: 'tool_cancel', callId })
          settle(failed(content))
        }
        const cancel = (): void => giveUp('The call was cancelled.')
        const late = setTimeout(() => giveUp('The sandbox took too long.'), timeoutMs + graceMs)
        const stopWatching = presence.watch(() => giveUp('The sandbox does not answer.'))
        signal.addEventListener('abort', cancel, { once: true })
        waiting.set(callId, settle)
        const command = mailbox.push({ kind: 'tool', callId, name, input: { ...input }, timeoutMs })
      })
    },
    answer(callId, result) {
      const settle = waiting.get(callId)
      settle?.(result)
      return settle !== undefined
    },
    close() {
      closed = true
      for (const settle of waiting.values()) settle(gone)
    },
  }
}
