import { linesOf } from '#kernel'
import type { Profile } from '#contracts/profiles'
import { type PromptFields, promptFieldsOf, promptInfoOf } from '#contracts/prompt'
import { parseLine, peekType } from '#contracts/run-event'
import type { DurableSession, StartRun } from '#contracts/run-store'
import type { LogChunk, RunSummary, SubTask, Task } from '#contracts/runs'
import type { StateBundle } from '#contracts/runtime'
import type { Session } from '#contracts/sessions'

export interface StoredRun {
  summary: RunSummary
  readonly tenantId: string
  epoch: number
  /** 0 until the run is claimed. */
  ordinal: number
  /** What goes to whoever executes it and is in no summary; kept until the run has ended. */
  input: PromptFields | undefined
  readonly log: LogChunk[]
}

export interface StoredSession {
  dto: Session
  readonly profile: Profile
  claimRun: string | undefined
  epoch: number
  runtimeSessionId: string | undefined
  stateRev: number
  runner: string | undefined
  state: StateBundle | undefined
}

export const keyOf = (tenantId: string, id: string): string => `${tenantId}\n${id}`

/** The answer and the vendor's handle, from the events that carry them. */
export function said(log: LogChunk | undefined): { result?: string; runtimeSessionId?: string } {
  const found: { result?: string; runtimeSessionId?: string } = {}
  for (const line of log ? linesOf(log.lines) : []) {
    const type = peekType(line)
    if (type === 'result') found.result = String(parseLine(line)?.['text'])
    else if (type === 'session_init') found.runtimeSessionId = String(parseLine(line)?.['runtimeSessionId'])
  }
  return found
}

/** What whoever executes the run is given. */
export const taskOf = ({ summary, input }: StoredRun): Task => {
  const { attachments: _, responseFormat: __, ...task } = summary.subTask
  return { ...(task as SubTask), ...input, ...(summary.parent ? { parent: summary.parent } : {}) }
}

export const lastSeqIn = (run: StoredRun): number => {
  const chunk = run.log.at(-1)
  return chunk ? chunk.firstSeq + chunk.count - 1 : 0
}

export const durableOf = (session: StoredSession): DurableSession => ({
  id: session.dto.id,
  profile: session.profile,
  status: session.dto.status,
  ...(session.runtimeSessionId === undefined ? {} : { runtimeSessionId: session.runtimeSessionId }),
  epoch: session.epoch,
  stateRev: session.stateRev,
  ...(session.runner === undefined ? {} : { runner: session.runner }),
})

export const newSession = (sessionId: string, profile: Profile, at: string): StoredSession => ({
  dto: {
    id: sessionId,
    profile: profile.name,
    runtime: profile.runtime,
    status: 'idle',
    createdAt: at,
    lastUsedAt: at,
    runCount: 0,
  },
  profile,
  claimRun: undefined,
  epoch: 0,
  runtimeSessionId: undefined,
  stateRev: 0,
  runner: undefined,
  state: undefined,
})

/** A run as it is accepted; claimed it becomes the newest of its session. */
export function newRun(
  { tenantId, runId, sessionId, task }: StartRun,
  status: 'queued' | 'running',
  at: string,
): StoredRun {
  const { profile, prompt, metadata } = task
  return {
    tenantId,
    epoch: 0,
    ordinal: 0,
    input: promptFieldsOf(task),
    log: [],
    summary: {
      runId,
      sessionId,
      status,
      subTask: {
        id: runId,
        sessionId,
        profile,
        prompt,
        ...(metadata === undefined ? {} : { metadata }),
        ...promptInfoOf(task),
      },
      ...(task.parent ? { parent: task.parent } : {}),
      attempt: 1,
      ...(status === 'queued' ? { queuedAt: at } : {}),
      startedAt: at,
    },
  }
}
