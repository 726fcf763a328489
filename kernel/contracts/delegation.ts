import { type Static, Type } from '@sinclair/typebox'

/** A tool call that waits until a conductor has run another profile for the call. */
export const Delegation = Type.Object({
  /** Names the call. It stays the same when the call is executed again because its run was retried. */
  id: Type.String(),
  /** The run whose tool delegates. */
  parentRunId: Type.String(),
  /** The id of the run to start. It is derived from `id` and `parentRunId`, so that a repeated call joins the existing run. */
  runId: Type.String(),
  profile: Type.String(),
  prompt: Type.String(),
})
export type Delegation = Static<typeof Delegation>

/** A call of an app tool. It waits on its runner until a conductor has made the call, because app accounts never leave conductors. */
export const AppCall = Type.Object({
  id: Type.String(),
  parentRunId: Type.String(),
  app: Type.Object({
    toolkit: Type.String(),
    tool: Type.Optional(Type.String()),
    input: Type.Record(Type.String(), Type.Unknown()),
    /** Set when another conductor took the call before and died, so that it is unknown whether the call was made. */
    again: Type.Optional(Type.Literal(true)),
  }),
})
export type AppCall = Static<typeof AppCall>

/** The stage of a `progress` event that makes the conductor take the waiting app calls. */
export const appCallStage = 'app_call'

/** A call of a platform tool that a conductor executes, because only conductors have its data. */
export const ConductorCall = Type.Object({
  id: Type.String(),
  parentRunId: Type.String(),
  tool: Type.String(),
  /** The input already satisfies the schema of the tool on the runner. */
  input: Type.Record(Type.String(), Type.Unknown()),
})
export type ConductorCall = Static<typeof ConductorCall>

/** The stage of a `progress` event that makes the conductor take the waiting calls of conductor tools. */
export const conductorCallStage = 'conductor_call'

/** A call that waits for a person, because its profile requires an approval. */
export const ApprovalCall = Type.Object({
  id: Type.String(),
  parentRunId: Type.String(),
  approval: Type.Object({
    /** Names the call within its run. */
    key: Type.String(),
    /** The call's id in the run's events, if the runtime names its calls. */
    callId: Type.Optional(Type.String()),
    tool: Type.String(),
    arguments: Type.Optional(Type.Unknown()),
  }),
})
export type ApprovalCall = Static<typeof ApprovalCall>

/** A call that waits on a runner for a conductor: a task for another profile, an app call, a call of a conductor tool, or a call to approve. */
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

/** The stage of a `progress` event that tells readers of a delegation, and makes the conductor take the waiting delegations. */
export const delegationStage = 'delegation'

/** The calls on a runner that wait for a conductor. A worker can write a `progress` event, but cannot add a call here. */
export interface Delegations {
  /** Makes a call wait for a conductor, and resolves to the conductor's answer. Rejects when the signal aborts. */
  call(
    of: { readonly tenantId: string; readonly sessionId: string; readonly signal: AbortSignal },
    call: AppCall | ConductorCall | ApprovalCall,
  ): Promise<DelegationAnswer>
  /** Returns the waiting calls of a session, and marks them as taken. */
  take(tenantId: string, sessionId: string): readonly WaitingCall[]
  /** Gives the waiting tool call its answer. False: the call no longer waits. */
  answer(tenantId: string, sessionId: string, id: string, answer: DelegationAnswer): boolean
}
