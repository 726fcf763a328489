import { createHash, randomUUID } from 'node:crypto'
import type { Static } from '@sinclair/typebox'
import {
  type AppCall,
  type ApprovalCall,
  type ConductorCall,
  type Delegation,
  type DelegationAnswer,
  type Delegations,
  delegationStage,
  type WaitingCall,
} from '#contracts/delegation'
import { tenantKey } from '#contracts/ids'
import type { ProgressEvent } from '#contracts/run-event'
import type { PlatformTool, ToolContext, ToolResult } from '#contracts/tools'

/** A conductor takes a delegation as soon as it reads the run's event. If none does within this time, the conductor does not support delegations. */
const takenWithinMs = 30_000
/** As long as the longest run may take. The deadline of the asking run usually ends the call sooner. */
const timeoutMs = 24 * 60 * 60 * 1_000

interface Waiting {
  readonly what: WaitingCall
  /** True once a conductor has taken the delegation. */
  taken: boolean
  readonly answer: (answer: DelegationAnswer) => void
  /** The timer that fails the call when no conductor takes the delegation in time. */
  readonly late: NodeJS.Timeout
}

/** The tool calls of this runner that wait for a conductor, which runs another profile or calls an app for them, by session. */
export class WaitingDelegations implements Delegations {
  readonly #sessions = new Map<string, Map<string, Waiting>>()

  call(
    of: Pick<ToolContext, 'tenantId' | 'sessionId' | 'signal'>,
    call: AppCall | ApprovalCall | ConductorCall,
  ): Promise<DelegationAnswer> {
    return this.wait(of, call)
  }
  take(tenantId: string, sessionId: string): readonly WaitingCall[] {
    const waiting = [...(this.#sessions.get(tenantKey(tenantId, sessionId))?.values() ?? [])]
    return waiting.map((one) => {
      clearTimeout(one.late)
      const { what, taken } = one
      one.taken = true
      // A repeated delegation joins its child run, so it may be sent again. A repeated call of an app would be executed twice, so it is marked.
      return taken && 'app' in what ? { ...what, app: { ...what.app, again: true as const } } : what
    })
  }
  answer(tenantId: string, sessionId: string, id: string, answer: DelegationAnswer): boolean {
    const waiting = this.#sessions.get(tenantKey(tenantId, sessionId))?.get(id)
    waiting?.answer(answer)
    return waiting !== undefined
  }
  /** Registers the call, so that a conductor can take it. Rejects when `signal` of the context aborts. */
  wait(
    { tenantId, sessionId, signal }: Pick<ToolContext, 'tenantId' | 'sessionId' | 'signal'>,
    what: WaitingCall,
  ): Promise<DelegationAnswer> {
    const { id } = what
    const key = tenantKey(tenantId, sessionId)
    const session = this.#sessions.get(key) ?? new Map<string, Waiting>()
    this.#sessions.set(key, session)
    return new Promise<DelegationAnswer>((resolve, reject) => {
      const over = (): void => {
        clearTimeout(waiting.late)
        signal.removeEventListener('abort', onAbort)
        // A repeated call may already wait under the same id, and must stay.
        if (session.get(id) === waiting) session.delete(id)
        if (session.size === 0 && this.#sessions.get(key) === session) this.#sessions.delete(key)
      }
      const answer = (given: DelegationAnswer): void => {
        over()
        resolve(given)
      }
      const onAbort = (): void => {
        over()
        reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
      }
      const nobody = { ok: false, content: 'No conductor takes what waits here.' }
      const waiting: Waiting = { what, taken: false, answer, late: setTimeout(answer, takenWithinMs, nobody) }
      session.set(id, waiting)
      if (signal.aborted) return onAbort()
      signal.addEventListener('abort', onAbort, { once: true })
    })
  }
}

/** Derives the ids of the call and of its child run from the idempotency key, so a repeated call gets the same ids. */
function delegationOf(
  { runId: parentRunId, idempotencyKey }: ToolContext,
  profile: string,
  prompt: string,
): Delegation {
  const id = idempotencyKey ?? randomUUID()
  const runId = `run_${createHash('sha256').update(`${parentRunId}\n${id}`).digest('hex').slice(0, 32)}`
  return { id, parentRunId, runId, profile, prompt }
}

type Told = NonNullable<Static<typeof ProgressEvent>['delegation']>

const refused = (content: string): ToolResult => ({ ok: false, content })

/**
 * The tool `delegate`: an agent gives a task to another agent. A conductor runs it while the call waits here, and refuses it beyond the limits of the
 * tenant. `maxDepth`: how many delegations may lead to a task on this runner, in addition to those limits.
 */
export const createDelegate = (waiting: WaitingDelegations, maxDepth = Infinity): PlatformTool => ({
  name: 'delegate',
  description:
    'Gives a task to another agent and returns its answer. The other agent knows nothing of this conversation: say in the prompt all that it needs.',
  inputSchema: {
    type: 'object',
    properties: {
      profile: { type: 'string', minLength: 1, maxLength: 64, description: 'Name of the other agent.' },
      prompt: { type: 'string', minLength: 1, maxLength: 200_000, description: 'The whole task.' },
    },
    required: ['profile', 'prompt'],
    additionalProperties: false,
  },
  timeoutMs,
  async execute(input, context) {
    if (context.runId === '') return refused('Tasks are delegated from runs only.')
    if (context.depth >= maxDepth) {
      const why = `the setting delegationDepth of the runner is ${maxDepth}`
      return refused(`This task is ${context.depth} delegations deep already: it cannot be delegated further (${why}).`)
    }
    const delegation = delegationOf(context, String(input['profile']), String(input['prompt']))
    const { id, runId, profile } = delegation
    const tell = (message: string, state: Pick<Told, 'state'> & Partial<Told>): void =>
      context.report?.({
        type: 'progress',
        stage: delegationStage,
        message,
        delegation: { id, runId, profile, ...state },
      })
    const answer = waiting.wait(context, delegation)
    // The conductor fetches waiting delegations when it reads this event.
    tell(`A task is given to '${profile}'.`, { state: 'started' })
    const { ok, content, ...end } = await answer
    tell(`The task of '${profile}' is over.`, { state: 'ended', ok, ...end })
    return { ok, content }
  },
})
