import type { Static } from '@sinclair/typebox'
import { delegationStage } from '#contracts/delegation'
import type { ProgressEvent } from '#contracts/run-event'
import type { PlatformTool, ToolResult } from '#contracts/tools'
import type { DelegationBook } from './book.ts'

/** As long as a run may take: the deadline of the run that asks ends it sooner. */
const timeoutMs = 24 * 60 * 60 * 1_000

type Told = NonNullable<Static<typeof ProgressEvent>['delegation']>

const refused = (content: string): ToolResult => ({ ok: false, content })

export const createDelegate = (book: DelegationBook, maxDepth: number): PlatformTool => ({
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
      return refused(`This task is ${context.depth} delegations deep already: it cannot be delegated further.`)
    }
    const delegation = book.prepare(context, { profile: String(input['profile']), prompt: String(input['prompt']) })
    const { id, runId, profile } = delegation
    const tell = (message: string, state: Pick<Told, 'state'> & Partial<Told>): void =>
      context.report?.({
        type: 'progress',
        stage: delegationStage,
        message,
        delegation: { id, runId, profile, ...state },
      })
    const answer = book.wait(context, delegation)
    // A conductor that reads this looks what waits.
    tell(`A task is given to '${profile}'.`, { state: 'started' })
    const { ok, content, ...end } = await answer
    tell(`The task of '${profile}' is over.`, { state: 'ended', ok, ...end })
    return { ok, content }
  },
})
