import { linesOf } from '#kernel'
import type { Profile } from '#contracts/profiles'
import { type PromptFields, promptFieldsOf, promptInfoOf } from '#contracts/prompt'
import { endOf, lastSeqOf, parseLine, peekType } from '#contracts/run-event'
import type { DurableSession, RunStore, StartRun } from '#contracts/run-store'
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
  /** Runs that wait for the session, first in line first. */
  waiting: { readonly runId: string; readonly front: boolean }[]
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

export const lastSeqIn = ({ log }: StoredRun): number => (log.length > 0 ? lastSeqOf(log.at(-1)!) : 0)

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
  waiting: [],
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

/** About what one read of a log returns. */
const readBytes = 1024 * 1024

/** What only looks. `started`: newest last. */
export function createReads(started: ReadonlyMap<string, StoredRun>, sessions: ReadonlyMap<string, StoredSession>) {
  return {
    async findRun(tenantId, runId) {
      return started.get(keyOf(tenantId, runId))?.summary
    },
    async listRuns(tenantId, filter) {
      const matching = [...started.values()]
        .filter((run) => run.tenantId === tenantId)
        .map((run) => run.summary)
        .filter(
          ({ subTask, sessionId, parent, status, startedAt }) =>
            (filter.profile === undefined || subTask.profile === filter.profile) &&
            (filter.sessionId === undefined || sessionId === filter.sessionId) &&
            (filter.parent === undefined || parent?.runId === filter.parent) &&
            (filter.status === undefined || status === filter.status) &&
            (filter.from === undefined || Date.parse(startedAt) >= Date.parse(filter.from)) &&
            (filter.to === undefined || Date.parse(startedAt) < Date.parse(filter.to)),
        )
        .toReversed()
      const from = filter.offset ?? 0
      return { runs: matching.slice(from, from + (filter.limit ?? matching.length)), total: matching.length }
    },
    async readLog(tenantId, runId, afterSeq) {
      const run = started.get(keyOf(tenantId, runId))
      if (!run) return undefined
      const chunks: LogChunk[] = []
      let bytes = 0
      for (const chunk of run.log) {
        if (chunk.firstSeq + chunk.count <= afterSeq + 1) continue
        if (bytes >= readBytes) break
        bytes += chunk.lines.length
        chunks.push(chunk)
      }
      return { chunks, status: run.summary.status }
    },
    async readEnding(tenantId, runId) {
      const chunk = started.get(keyOf(tenantId, runId))?.log.at(-1)
      return chunk && endOf(chunk)
    },
    async runsOfSession(tenantId, sessionId, ordinal) {
      const session = sessions.get(keyOf(tenantId, sessionId))
      if (!session) return undefined
      const runs = [...started.values()]
        .filter((run) => run.tenantId === tenantId && run.summary.sessionId === sessionId && run.ordinal > ordinal)
        .map((run) => ({ runId: run.summary.runId, ordinal: run.ordinal }))
        .sort((a, b) => a.ordinal - b.ordinal)
      return { runs: runs.slice(0, 100), status: session.dto.status }
    },
    async getSession(tenantId, sessionId) {
      return sessions.get(keyOf(tenantId, sessionId))?.dto
    },
    async findSession(tenantId, sessionId) {
      const session = sessions.get(keyOf(tenantId, sessionId))
      return session && durableOf(session)
    },
    async loadState(tenantId, sessionId) {
      return sessions.get(keyOf(tenantId, sessionId))?.state
    },
    async listSessions(tenantId, filter) {
      const q = filter.q?.toLowerCase() ?? ''
      const matching = [...sessions]
        .filter(([key, { dto }]) => key === keyOf(tenantId, dto.id) && dto.status !== 'shutdown')
        .map(([, { dto }]) => dto)
        .filter((dto) => dto.id.toLowerCase().includes(q) || dto.profile.toLowerCase().includes(q))
        .sort((a, b) => (a.createdAt === b.createdAt ? (a.id < b.id ? 1 : -1) : a.createdAt < b.createdAt ? 1 : -1))
      const from = filter.offset ?? 0
      return { sessions: matching.slice(from, from + (filter.limit ?? matching.length)), total: matching.length }
    },
  } satisfies Partial<RunStore>
}
