import { type Static, Type } from '@sinclair/typebox'

/** A tool call that waits until a conductor has run another profile for it. */
export const Delegation = Type.Object({
  /** Names the call; the same when it is executed again because its run was tried again. */
  id: Type.String(),
  /** The run whose tool asks. */
  parentRunId: Type.String(),
  /** Of the run that is to be started: derived from the two above, so that a repeated call joins the run that is there. */
  runId: Type.String(),
  profile: Type.String(),
  prompt: Type.String(),
})
export type Delegation = Static<typeof Delegation>

/** How it ended. `status` and `costCents` are those of the child run, when one was started. */
export const DelegationAnswer = Type.Object({
  ok: Type.Boolean(),
  content: Type.String(),
  status: Type.Optional(Type.String()),
  costCents: Type.Optional(Type.Number()),
})
export type DelegationAnswer = Static<typeof DelegationAnswer>

/** `progress` events with this stage tell readers of a delegation, and a conductor to take what is waiting. */
export const delegationStage = 'delegation'

/** The delegations of a runner that wait. A worker can write a `progress` event, but not put anything in here. */
export interface Delegations {
  /** Those of a session that wait; from then on they count as taken. */
  take(tenantId: string, sessionId: string): readonly Delegation[]
  /** False: nobody waits for it any more. */
  answer(tenantId: string, sessionId: string, id: string, answer: DelegationAnswer): boolean
}
