import { type EndingCode, endings, isLost } from '#contracts/endings'
import { type OnCrash, type Profile, restoredFromLog } from '#contracts/profiles'
import { promptFieldsOf } from '#contracts/prompt'
import { createEventEncoder, type LogChunk, parseLine, type RuntimeEvent } from '#contracts/run-event'
import type { Claim, DurableSession, EndReason, FinishRun } from '#contracts/run-store'
import type { ExecuteRun, RunnerLink } from '#contracts/runner'
import type { Task } from '#contracts/runs'
import type { RunUsage } from './usage.ts'

/**
 * The state of a run in this process. `dispatching`: no runner has taken the attempt. `streaming`: a runner has. `waiting`: the attempt was lost
 * and the next one follows. `refused`: no runner will take the run, and the run is being taken back. `ending`: the ending is decided and is being
 * stored. Three states are final: `ended` here, `left` to another process, or `discarded` as if the run had never been requested.
 */
export type RunState = 'dispatching' | 'streaming' | 'waiting' | 'refused' | 'ending' | 'ended' | 'left' | 'discarded'

/** The states that may follow each state. */
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

/** How a run ended. `line` is the terminal event that the runner wrote; without it the conductor writes one. */
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

/** The ending for this code. `message` replaces the standard sentence where there is more to say. */
export const endingOf = (code: EndingCode, message: string = endings[code].message): Stop => ({
  status: endings[code].status,
  code,
  message,
})

/** An event that the conductor writes, as a chunk of the run's log. */
export const eventOf = ({ runId, sessionId }: Claim, seq: number, event: RuntimeEvent): LogChunk => ({
  firstSeq: seq,
  count: 1,
  lines: Buffer.from(createEventEncoder(runId, sessionId, seq).line(event)),
})
/** The event that announces another attempt. The text from event `supersedes` on will be generated again. */
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

/** The terminal event of an ending: the runner's if it wrote one, otherwise the conductor's. */
export function terminalLine(claim: Claim, seq: number, ending: Ending): LogChunk {
  if (ending.line) return { firstSeq: seq, count: 1, lines: ending.line }
  const { code, message, retryable } = ending as Stop
  return eventOf(claim, seq, { type: 'error', code, message, ...(retryable ? { retryable } : {}) })
}

const defaultAttempts = 3
const defaultTimeoutSeconds = 600
/** Milliseconds of pause before the second, third, and later attempts: a restarted process needs a moment, a restarting fleet needs longer. */
const backoffMs = [500, 2_000, 5_000] as const

/** How long a run of a profile may take, how many attempts it has, and how long to wait between them. */
export interface AttemptPolicy {
  /** The limit for all attempts together, in milliseconds. */
  readonly timeoutMs: number
  /** The largest number of attempts. */
  readonly most: number
  /** Another conductor may continue the run when this one dies. */
  readonly resumes: boolean
  /** Milliseconds to wait after `attempt` ended with this ending. Undefined: it was the last attempt, or the ending is final. */
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

/** A run that this process has claimed, with what this process knows about the run. */
export interface RunOrder {
  readonly claim: Claim
  readonly task: Task
  readonly session: DurableSession
  /** Microcents that are held for the run. Absent: this process does not know the amount. */
  readonly held?: number
  /** The runner on which the new session was placed. Absent: the session existed before. */
  readonly placed?: RunnerLink
  /** The session is new, but it continues the conversation of an earlier session. */
  readonly remembers?: boolean
  /** The caller was already told that the run is accepted, so the run can no longer be taken back. */
  readonly announced?: boolean
  /** The run was taken over from a process that died or handed it over: how many attempts it had, and how long ago the first one began. */
  readonly orphan?: {
    readonly attempt: number
    readonly elapsedMs: number
    readonly handedOver: boolean
    /** Nobody executed the run: it was parked until people decided, and they have. */
    readonly parked?: true
  }
}

/** The parts of a claimed run that its tool calls use. */
export type OrderedRun = Pick<RunOrder, 'claim' | 'task' | 'session' | 'orphan'>

/** How long a runner goes on with a run without a conductor. It exceeds the time needed to notice that a conductor has died. */
const keepMs = 30_000

/** What a runner is sent for the first attempt at a run. Later attempts send only what differs. */
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
    ...(task.parent?.awaits ? { awaited: true } : {}),
    ...(task.metadata === undefined ? {} : { metadata: task.metadata }),
    ...(session.runtimeSessionId === undefined ? {} : { runtimeSessionId: session.runtimeSessionId }),
    ...(task.attachments || task.responseFormat ? promptFieldsOf(task) : {}),
    ...(placed && !remembers ? { create: { profile: session.profile } } : {}),
  }
}

/** The ending when the last attempt was lost too. Its sentence says how many attempts were made. */
export function afterAttempts(last: Ending, attempt: number): Ending {
  if (last.status === 'ok' || attempt === 1 || !isLost(last.code)) return last
  const { line, ...told } = last
  const retryable = last.retryable ?? (line !== undefined && parseLine(line)?.['retryable'] === true)
  return { ...told, message: tried(last.message, attempt), ...(retryable ? { retryable } : {}) }
}
const tried = (message: string, attempt: number): string => `${message} It was tried ${attempt} times.`

/** The reason that ends a run whose owner died and which may not be continued. */
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

/** What the store keeps about the end of a run. */
export function finishOf(
  ending: Ending,
  { calls, contextTokens, toolCalls, sandbox, runtimeSessionId }: RunUsage,
  { runtime }: Profile,
  runner: RunnerLink | undefined,
): Omit<FinishRun, 'claim' | 'tail'> {
  return {
    status: ending.status,
    sessionStatus: ending.status === 'error' ? 'errored' : 'idle',
    ...(ending.status === 'ok' ? { result: ending.result } : { error: { code: ending.code, message: ending.message } }),
    ...(calls ? { usage: calls } : {}),
    ...(contextTokens === undefined ? {} : { contextTokens }),
    toolCalls,
    keepInput: restoredFromLog(runtime),
    ...(sandbox ? { sandbox } : {}),
    ...(runtimeSessionId === undefined ? {} : { runtimeSessionId }),
    ...(runner ? { runner: runner.hash } : {}),
  }
}
