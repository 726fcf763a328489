import { type EndingCode, endings, isLost } from '#contracts/endings'
import { type OnCrash, type Profile, restoredFromLog } from '#contracts/profiles'
import { promptFieldsOf } from '#contracts/prompt'
import { createEventEncoder, type LogChunk, parseLine, type RuntimeEvent } from '#contracts/run-event'
import type { Claim, DurableSession, EndReason, FinishRun } from '#contracts/run-store'
import type { ExecuteRun, RunnerLink } from '#contracts/runner'
import type { Task } from '#contracts/runs'
import type { RunUsage } from './usage.ts'

/**
 * Where a run is. `dispatching`: no runner has taken the attempt. `streaming`: one has. `waiting`: the attempt was lost, the
 * next one follows. `refused`: no runner will take it, and it is being taken back. `ending`: how it ends is decided and is
 * being stored. The other three are final: it `ended` here, was `left` to another process, or was `discarded` as if it had
 * never been asked for.
 */
export type RunState = 'dispatching' | 'streaming' | 'waiting' | 'refused' | 'ending' | 'ended' | 'left' | 'discarded'

/** Which states may follow each. */
export const next: Readonly<Record<RunState, readonly RunState[]>> = {
  dispatching: ['streaming', 'waiting', 'refused', 'ending', 'left'],
  streaming: ['waiting', 'ending', 'left'],
  waiting: ['dispatching', 'ending', 'left'],
  refused: ['discarded', 'ending', 'left'],
  ending: ['ended', 'left'],
  ended: [],
  left: [],
  discarded: [],
}

/** How a run ended. `line` is the runner's own terminal event; without it the conductor writes one. */
export type Ending =
  | { readonly status: 'ok'; readonly result: string; readonly line: Buffer }
  | {
      readonly status: 'error' | 'cancelled' | 'interrupted'
      readonly code: string
      readonly message: string
      readonly retryable?: boolean
      readonly line?: Buffer
    }
/** Why the conductor itself ends a run. */
export type Stop = Extract<Ending, { code: string }>

/** The ending of this code, with a sentence of its own where there is more to say. */
export const endingOf = (code: EndingCode, message: string = endings[code].message): Stop => ({
  status: endings[code].status,
  code,
  message,
})

/** An event of the conductor's own, as a chunk of the run's log. */
export const eventOf = ({ runId, sessionId }: Claim, seq: number, event: RuntimeEvent): LogChunk => ({
  firstSeq: seq,
  count: 1,
  lines: Buffer.from(createEventEncoder(runId, sessionId, seq).line(event)),
})
/** The event that says that the run is tried again. The text from event `supersedes` on will be generated again. */
export const retryOf = (
  claim: Claim,
  seq: number,
  { message }: Stop,
  attempt: number,
  most: number,
  supersedes?: number,
) =>
  eventOf(claim, seq, {
    type: 'progress',
    stage: 'retrying',
    attempt,
    message: `${message} Attempt ${attempt} of ${most} follows.`,
    ...(supersedes === undefined ? {} : { supersedes }),
  })

/** The terminal event of an ending, the runner's own if it wrote one. */
export function terminalLine(claim: Claim, seq: number, ending: Ending): LogChunk {
  if (ending.line) return { firstSeq: seq, count: 1, lines: ending.line }
  const { code, message, retryable } = ending as Stop
  return eventOf(claim, seq, { type: 'error', code, message, ...(retryable ? { retryable } : {}) })
}

const defaultAttempts = 3
const defaultTimeoutSeconds = 600
/** The pauses before the second, third, … attempt: a restarted process needs a moment, and a restarting fleet needs longer. */
const backoffMs = [500, 2_000, 5_000] as const

/** How long a run of a profile may take, how often it may be begun, and when again. */
export interface AttemptPolicy {
  /** The limit for all attempts together. */
  readonly timeoutMs: number
  /** The largest number of attempts. */
  readonly most: number
  /** Another conductor may continue the run when this one dies. */
  readonly resumes: boolean
  /** Milliseconds to wait after `attempt` ended so. Undefined: it was the last attempt, or the ending is final. */
  waitAfter(attempt: number, ending: Ending, remainingMs: number): number | undefined
}

export function policyOf({ onCrash, limits }: Profile, unlessSaid: OnCrash): AttemptPolicy {
  const crash = onCrash ?? unlessSaid
  const most = crash === 'retry' ? (limits.maxAttempts ?? defaultAttempts) : 1
  return {
    timeoutMs: (limits.timeoutSeconds ?? defaultTimeoutSeconds) * 1_000,
    most,
    resumes: crash !== 'interrupt',
    waitAfter(attempt, ending, remainingMs) {
      if (ending.status === 'ok' || !isLost(ending.code) || attempt >= most) return undefined
      const wait = backoffMs[Math.min(attempt, backoffMs.length) - 1]!
      return wait < remainingMs ? wait : undefined
    },
  }
}

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

/** What the calls of a run have to know of it. */
export type OrderedRun = Pick<RunOrder, 'claim' | 'task' | 'session'>

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

/** The ending when the last attempt was lost, too: its sentence says how often the run was tried. */
export function afterAttempts(last: Ending, attempt: number): Ending {
  if (last.status === 'ok' || attempt === 1 || !isLost(last.code)) return last
  const { line, ...told } = last
  const retryable = last.retryable ?? (line !== undefined && parseLine(line)?.['retryable'] === true)
  return { ...told, message: tried(last.message, attempt), ...(retryable ? { retryable } : {}) }
}
const tried = (message: string, attempt: number): string => `${message} It was tried ${attempt} times.`

/** The reason that ends the run of a dead owner when it may not be continued. */
export const orphaned = (attempt: number): EndReason => {
  const { message } = endings.interrupted
  return { code: 'interrupted', message: attempt === 1 ? message : tried(message, attempt) }
}

/** True when the promise settled within `ms`. */
export const within = (promise: Promise<unknown>, ms: number): Promise<boolean> =>
  new Promise((resolve) => {
    const timer = setTimeout(() => resolve(false), ms)
    const settled = (): void => {
      clearTimeout(timer)
      resolve(true)
    }
    promise.then(settled, settled)
  })

/** What is stored of the end of a run. */
export function finishOf(
  ending: Ending,
  { calls, toolCalls, sandbox, runtimeSessionId }: RunUsage,
  { runtime }: Profile,
  runner: RunnerLink | undefined,
): Omit<FinishRun, 'claim' | 'tail'> {
  return {
    status: ending.status,
    sessionStatus: ending.status === 'error' ? 'errored' : 'idle',
    ...(ending.status === 'ok' ? { result: ending.result } : { error: { code: ending.code, message: ending.message } }),
    ...(calls ? { usage: calls } : {}),
    toolCalls,
    keepInput: restoredFromLog(runtime),
    ...(sandbox ? { sandbox } : {}),
    ...(runtimeSessionId === undefined ? {} : { runtimeSessionId }),
    ...(runner ? { runner: runner.hash } : {}),
  }
}
