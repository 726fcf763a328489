import { createHash, randomUUID } from 'node:crypto'
import type { Delegation, DelegationAnswer, RunnerDelegations } from '#contracts/delegation'
import type { ToolContext } from '#contracts/tools'

/** A conductor looks as soon as it reads the event; one that never does knows no delegations. */
const takenWithinMs = 30_000

interface Waiting {
  readonly delegation: Delegation
  readonly answer: (answer: DelegationAnswer) => void
  readonly late: NodeJS.Timeout
}

export interface DelegationBook {
  readonly delegations: RunnerDelegations
  /** Gives the call its id, and the child run its own. */
  prepare(context: ToolContext, task: Pick<Delegation, 'profile' | 'prompt'>): Delegation
  /** From now on it can be taken. Rejects when `signal` of the context aborts. */
  wait(context: ToolContext, delegation: Delegation): Promise<DelegationAnswer>
}

export function createDelegationBook(): DelegationBook {
  const sessions = new Map<string, Map<string, Waiting>>()
  const keyOf = (tenantId: string, sessionId: string): string => `${tenantId}\n${sessionId}`
  return {
    delegations: {
      take(tenantId, sessionId) {
        const waiting = [...(sessions.get(keyOf(tenantId, sessionId))?.values() ?? [])]
        for (const { late } of waiting) clearTimeout(late)
        return waiting.map(({ delegation }) => delegation)
      },
      answer(tenantId, sessionId, id, answer) {
        const waiting = sessions.get(keyOf(tenantId, sessionId))?.get(id)
        waiting?.answer(answer)
        return waiting !== undefined
      },
    },
    prepare({ runId: parentRunId, idempotencyKey }, task) {
      const id = idempotencyKey ?? randomUUID()
      const runId = `run_${createHash('sha256').update(`${parentRunId}\n${id}`).digest('hex').slice(0, 32)}`
      return { id, parentRunId, runId, ...task }
    },
    wait({ tenantId, sessionId, signal }, delegation) {
      const { id } = delegation
      const key = keyOf(tenantId, sessionId)
      const session = sessions.get(key) ?? new Map<string, Waiting>()
      sessions.set(key, session)
      return new Promise<DelegationAnswer>((resolve, reject) => {
        const over = (): void => {
          clearTimeout(waiting.late)
          signal.removeEventListener('abort', onAbort)
          // A repeated call may wait under this id by now.
          if (session.get(id) === waiting) session.delete(id)
          if (session.size === 0 && sessions.get(key) === session) sessions.delete(key)
        }
        const answer = (given: DelegationAnswer): void => {
          over()
          resolve(given)
        }
        const onAbort = (): void => {
          over()
          reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
        }
        const nobody = { ok: false, content: 'No conductor takes delegated tasks here.' }
        const waiting: Waiting = { delegation, answer, late: setTimeout(answer, takenWithinMs, nobody) }
        session.set(id, waiting)
        if (signal.aborted) return onAbort()
        signal.addEventListener('abort', onAbort, { once: true })
      })
    },
  }
}
