import { type Static, Type } from '@sinclair/typebox'

/** A tool call that waits until a conductor has run another profile for it. */
export const Delegation = Type.Object({
  /** Names the call. It stays the same when the call is executed again because its run was retried. */
  id: Type.String(),
  /** The run whose tool delegates. */
  parentRunId: Type.String(),
  /** The id of the run to start. It is derived from the two above, so that a repeated call joins the run that exists. */
  runId: Type.String(),
  profile: Type.String(),
  prompt: Type.String(),
})
export type Delegation = Static<typeof Delegation>

/** How a delegation ended. `status` and `costCents` are those of the child run, when one was started. */
export const DelegationAnswer = Type.Object({
  ok: Type.Boolean(),
  content: Type.String(),
  status: Type.Optional(Type.String()),
  costCents: Type.Optional(Type.Number()),
})
export type DelegationAnswer = Static<typeof DelegationAnswer>

/** A `progress` event with this stage tells readers of a delegation, and makes the conductor take the waiting ones. */
export const delegationStage = 'delegation'

/** The waiting delegations of a runner. A worker can write a `progress` event, but cannot add a delegation here. */
export interface Delegations {
  /** Returns the waiting delegations of a session and marks them as taken. */
  take(tenantId: string, sessionId: string): readonly Delegation[]
  /** Gives the waiting tool call its answer. False: the call does not wait any more. */
  answer(tenantId: string, sessionId: string, id: string, answer: DelegationAnswer): boolean
}
