import { linesOf } from '#kernel'
import type { Profile } from '#contracts/profiles'
import { type PromptFields, promptFieldsOf, promptInfoOf } from '#contracts/prompt'
import { lastSeqOf, type LogChunk, parseLine, peekType } from '#contracts/run-event'
import type { DurableSession, StartRun } from '#contracts/run-store'
import type { RunSummary, SubTask, Task } from '#contracts/runs'
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
  readonly tenantId: string
  dto: Session
  readonly profile: Profile
  claimRun: string | undefined
  epoch: number
  stateRev: number
  /** What may be missing: where the conversation is, in the words of `DurableSession`. */
  where: Pick<DurableSession, 'runtimeSessionId' | 'runner'>
  state: StateBundle | undefined
  /** Runs that wait for the session, first in line first. */
  waiting: { readonly runId: string; readonly front: boolean }[]
}

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

export const lastSeqIn = ({ log }: StoredRun): number => (log.length > 0 ? lastSeqOf(log.at(-1)!) : 0)

/** The same chunk again is a repeated call. */
export function add(run: StoredRun, chunk: LogChunk): void {
  if (chunk.firstSeq > lastSeqIn(run)) run.log.push(chunk)
}

export const durableOf = ({ dto, profile, where, epoch, stateRev }: StoredSession): DurableSession => ({
  id: dto.id,
  profile,
  status: dto.status,
  epoch,
  stateRev,
  ...where,
})

export function newSession(tenantId: string, id: string, profile: Profile, at: string): StoredSession {
  const { name, runtime } = profile
  const dto = { id, profile: name, runtime, status: 'idle', createdAt: at, lastUsedAt: at, runCount: 0 } as const
  return {
    tenantId,
    dto,
    profile,
    claimRun: undefined,
    epoch: 0,
    stateRev: 0,
    where: {},
    state: undefined,
    waiting: [],
  }
}

/** A run as it is accepted; claimed it becomes the newest of its session. */
export function newRun({ tenantId, runId, sessionId, task }: StartRun, queuedAt?: string): StoredRun {
  const { profile, prompt, metadata, parent } = task
  const more = { ...(metadata === undefined ? {} : { metadata }), ...promptInfoOf(task) }
  const summary: RunSummary = {
    runId,
    sessionId,
    status: 'queued',
    subTask: { id: runId, sessionId, profile, prompt, ...more },
    ...(parent ? { parent } : {}),
    attempt: 1,
    ...(queuedAt === undefined ? {} : { queuedAt }),
    startedAt: queuedAt ?? '',
  }
  return { summary, tenantId, epoch: 0, ordinal: 0, input: promptFieldsOf(task), log: [] }
}
