import { hash } from 'node:crypto'
import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import { type Caller, roles, type TenantRole } from './auth.ts'
import type { TenantTx } from './database.ts'
import { errorTable } from './errors.ts'

export const approvalErrors = errorTable('approvals', {
  alreadyResolved: {
    status: 409,
    message: 'The approval was already resolved, or the call or node that it was for is over.',
  },
  wrongApprover: { status: 403, about: 'The profile or node requires a key of a higher role for this decision.' },
})

/** The possible outcomes of an approval that nobody decides in time. */
export const onExpiry = ['reject', 'approve'] as const
export type OnExpiry = (typeof onExpiry)[number]

/** A name of a tool, in which `*` stands for any characters. */
export const toolPattern = Type.String({ pattern: '^[A-Za-z0-9_.*-]{1,128}$' })

/** The approval settings of a profile. */
export const ProfileApprovals = Type.Object(
  {
    expiresInSeconds: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 31_536_000, description: 'Seven days by default.' }),
    ),
    onExpiry: Type.Optional(
      Type.Union(
        onExpiry.map((one) => Type.Literal(one)),
        { description: 'What becomes of a call that nobody decides in time; `reject` by default.' },
      ),
    ),
    role: Type.Optional(
      Type.Union(
        roles.map((one) => Type.Literal(one)),
        { description: 'Who may decide: keys of this role, or of one above; `member` by default.' },
      ),
    ),
  },
  { additionalProperties: false },
)
export type ProfileApprovals = Static<typeof ProfileApprovals>

/** The fields of a profile about approvals. */
interface Asking {
  readonly requireApproval?: readonly string[]
  readonly approvals?: ProfileApprovals
}

/** Whether a tool's name matches a pattern. */
export function fitsPattern(name: string, pattern: string): boolean {
  const parts = pattern.split('*')
  const [first = '', ...rest] = parts
  if (rest.length === 0) return name === pattern
  const last = rest.pop()!
  if (!name.startsWith(first) || !name.endsWith(last) || name.length < first.length + last.length) return false
  let at = first.length
  const end = name.length - last.length
  for (const part of rest) {
    const found = name.indexOf(part, at)
    if (found < 0 || found + part.length > end) return false
    at = found + part.length
  }
  return true
}
/** Whether a call of this tool waits for a person. */
export const needsApproval = ({ requireApproval = [] }: Asking, tool: string): boolean =>
  requireApproval.some((pattern) => fitsPattern(tool, pattern))
export const hasApprovals = ({ requireApproval = [] }: Asking): boolean => requireApproval.length > 0

/**
 * The tool by which a runtime asks the session's endpoint whether it may make a call that bypasses the runner. No list of tools shows it. Its input
 * is `{name, arguments}`.
 */
export const approvalTool = 'agent-orc.approval'

/** The stage of a `progress` event that tells readers that a call waits for a person, and makes the conductor fetch that call. */
export const approvalStage = 'approval_waiting'
/** The stage of a `progress` event that says that the run was parked and now continues. */
export const resumedStage = 'resumed'

/** The id of the approval of one call, derived from the run and the call's key. It has the form of other ids. */
export const approvalIdOf = (runId: string, key: string): string =>
  `appr_${hash('sha256', `${runId}\n${key}`).slice(0, 33)}`

/** How a call was decided. */
export const CallDecision = Type.Object({
  approved: Type.Boolean(),
  comment: Type.Optional(Type.String()),
  /** The id of the key that decided, or `expiry`. */
  by: Type.Optional(Type.String()),
})
export type CallDecision = Static<typeof CallDecision>

/** What the model gets as the result of a rejected call. */
export const rejection = (tool: string, { comment, by }: CallDecision): string =>
  by === 'expiry'
    ? `The call of '${tool}' was not made: it was not approved in time.`
    : `The call of '${tool}' was rejected by a person${comment ? `, who says: ${comment}` : '.'}`

/** A tool call that waits for a person. */
export interface AskedCall {
  readonly tenantId: string
  readonly runId: string
  readonly sessionId: string
  /** Names the call within its run. It is the same whenever the call is executed again. */
  readonly key: string
  readonly tool: string
  readonly arguments: unknown
  readonly profile: { readonly name: string; readonly approvals?: ProfileApprovals }
  readonly endUserId: string | undefined
}

/** A workflow node that asks for an approval. */
export interface AskedNode {
  readonly id: string
  readonly workflowRunId: string
  readonly nodeId: string
  readonly message: string
  /** Undefined: the approval never expires. */
  readonly expiresInMs: number | undefined
  readonly onExpiry: OnExpiry
  readonly role: TenantRole
}

/** The stored approval of a workflow node. */
export interface NodeApproval {
  readonly id: string
  readonly workflowRunId: string
  readonly nodeId: string
}
export interface NodeDecision {
  readonly approved: boolean
  readonly comment?: string
}

/** Approvals: the calls and nodes that wait for people, and the decisions on them. */
export interface Approvals {
  /**
   * Requests a decision on a call, once: later requests with the same key find the decision. Resolves to `waiting`, or to the decision. Rejects
   * with the AppError of the limit `openApprovals`.
   */
  ask(call: AskedCall): Promise<CallDecision | 'waiting'>
  /**
   * Requests a decision on a node, in the transaction that makes the node wait. Rejects with the AppError of the limit `openApprovals` before
   * anything is written.
   */
  askFor(tx: TenantTx, node: AskedNode): Promise<void>
  /** The decisions on the calls of a run, by the calls' keys. */
  decided(tenantId: string, runId: string): Promise<Record<string, CallDecision>>
  /** Call it in the transaction that parks a run, because people may have decided everything at that moment. */
  left(tx: TenantTx, runId: string): Promise<void>
  /** Registers `resume`, which is called when all approvals of a run are decided, and again when it throws. Call it in setup. */
  onDecided(resume: (tenantId: string, runId: string) => Promise<void>): void
  /** Registers `decide`, which passes a decision on a node to its workflow, and throws when the decision comes too late. Call it in setup. */
  onNodes(decide: (caller: Caller, approval: NodeApproval, decision: NodeDecision) => Promise<void>): void
}
export const Approvals = capability<Approvals>('conductor.approvals')
