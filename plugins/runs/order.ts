import { promptFieldsOf } from '#contracts/prompt'
import type { Claim, DurableSession } from '#contracts/run-store'
import type { ExecuteRun, RunnerLink } from '#contracts/runner'
import type { Task } from '#contracts/runs'
import type { AttemptPolicy } from './ending.ts'

/** A run that this process has claimed, and what it knows of it. */
export interface RunOrder {
  readonly claim: Claim
  readonly task: Task
  readonly session: DurableSession
  /** Microcents that are held for it; absent where that is not known here. */
  readonly held?: number
  /** The runner that the new session was placed on. Absent: the session exists. */
  readonly placed?: RunnerLink
  /** The session is new, but its conversation goes on from an earlier one. */
  readonly remembers?: boolean
  /** Its caller was already answered that it is accepted, so it cannot be taken back any more. */
  readonly announced?: boolean
  /** It was taken over from a process that died or left it: how often it was begun, and how long ago for the first time. */
  readonly orphan?: {
    readonly attempt: number
    readonly elapsedMs: number
    readonly handedOver: boolean
    /** Nobody executes it: it waited for people, who have decided. */
    readonly parked?: true
  }
}

/** How long a run goes on at its runner without a conductor: longer than it takes to find out that one has died. */
const keepMs = 30_000

/** What a runner is told of the first attempt at a run; each later one says what is different. */
export function firstAttempt(
  { claim, task, session, placed, remembers }: RunOrder,
  { timeoutMs }: Pick<AttemptPolicy, 'timeoutMs'>,
): ExecuteRun {
  const depth = task.parent?.depth ?? 0
  return {
    runId: claim.runId,
    sessionId: claim.sessionId,
    prompt: task.prompt,
    firstSeq: 2,
    timeoutMs,
    epoch: claim.epoch,
    keepMs,
    ...(depth === 0 ? {} : { depth }),
    ...(task.metadata === undefined ? {} : { metadata: task.metadata }),
    ...(session.runtimeSessionId === undefined ? {} : { runtimeSessionId: session.runtimeSessionId }),
    ...(task.attachments || task.responseFormat ? promptFieldsOf(task) : {}),
    ...(placed && !remembers ? { create: { profile: session.profile } } : {}),
  }
}
