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

/** A call of a tool of an app, which waits on its runner until a conductor has made it: accounts never leave conductors. */
export const AppCall = Type.Object({
  id: Type.String(),
  parentRunId: Type.String(),
  app: Type.Object({
    toolkit: Type.String(),
    tool: Type.Optional(Type.String()),
    input: Type.Record(Type.String(), Type.Unknown()),
    /** Another conductor had it before and died, so it is not known whether the call was made. */
    again: Type.Optional(Type.Literal(true)),
  }),
})
export type AppCall = Static<typeof AppCall>

/** A `progress` event with this stage makes the conductor take the waiting ones. */
export const appCallStage = 'app_call'

/** A call of a platform tool that a conductor executes, because only conductors have its data. */
export const ConductorCall = Type.Object({
  id: Type.String(),
  parentRunId: Type.String(),
  tool: Type.String(),
  /** It satisfies the schema of the tool on the runner. */
  input: Type.Record(Type.String(), Type.Unknown()),
})
export type ConductorCall = Static<typeof ConductorCall>

/** A `progress` event with this stage makes the conductor take the waiting ones. */
export const conductorCallStage = 'conductor_call'

/** A call that waits for a person: its profile says so. */
export const ApprovalCall = Type.Object({
  id: Type.String(),
  parentRunId: Type.String(),
  approval: Type.Object({
    /** Names the call in its run. */
    key: Type.String(),
    /** Its id in the run's events, from a runtime that names its calls. */
    callId: Type.Optional(Type.String()),
    tool: Type.String(),
    arguments: Type.Optional(Type.Unknown()),
  }),
})
export type ApprovalCall = Static<typeof ApprovalCall>

/** A call that waits on a runner for a conductor: a task for another profile, a call of an app or of a conductor tool, or a call to approve. */
export const WaitingCall = Type.Union([Delegation, AppCall, ConductorCall, ApprovalCall])
export type WaitingCall = Static<typeof WaitingCall>

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

/** What waits on a runner for a conductor. A worker can write a `progress` event, but cannot add anything here. */
export interface Delegations {
  /** Has a call of an app, or of a tool, wait for a conductor. Rejects when the signal aborts. */
  call(
    of: { readonly tenantId: string; readonly sessionId: string; readonly signal: AbortSignal },
    call: AppCall | ConductorCall | ApprovalCall,
  ): Promise<DelegationAnswer>
  /** Returns what waits in a session, and marks it as taken. */
  take(tenantId: string, sessionId: string): readonly WaitingCall[]
  /** Gives the waiting tool call its answer. False: the call does not wait any more. */
  answer(tenantId: string, sessionId: string, id: string, answer: DelegationAnswer): boolean
}
