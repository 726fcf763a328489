import { tenantKey } from '#contracts/ids'
import type { Profile } from '#contracts/profiles'
import { type PromptFields, promptFieldsOf, promptInfoOf } from '#contracts/prompt'
import type { LogChunk } from '#contracts/run-event'
import type { DurableSession, RunStore, StartRun } from '#contracts/run-store'
import {
  previewMetadataBytes,
  previewOf,
  type RunPreview,
  type RunSummary,
  type SubTask,
  type Task,
} from '#contracts/runs'
import type { StateBundle } from '#contracts/runtime'
import type { Session } from '#contracts/sessions'
import type { Shown } from '../journal/file.ts'

export interface RunRow {
  summary: RunSummary
  readonly tenantId: string
  epoch: number
  /** The run's position in its session, counted from 1; 0 until the run is claimed. */
  ordinal: number
  /** The parts of the prompt that the executor needs and the summary lacks. Kept until the run has ended. */
  input: PromptFields | undefined
  readonly log: LogChunk[]
}

export interface SessionRow {
  readonly tenantId: string
  dto: Session
  readonly profile: Profile
  claimRun: string | undefined
  epoch: number
  stateRev: number
  /** Where the conversation is and how long it was, as optional fields of `DurableSession`. */
  where: Pick<DurableSession, 'runtimeSessionId' | 'runner' | 'contextTokens'>
  state: StateBundle | undefined
  /** Runs that wait for the session, first in line first. */
  waiting: { readonly runId: string; readonly front: boolean }[]
}

/** What the executor of the run is given. */
export const taskOf = ({ summary, input }: RunRow): Task => {
  const { attachments: _, responseFormat: __, ...task } = summary.subTask
  return { ...(task as SubTask), ...input, ...(summary.parent ? { parent: summary.parent } : {}) }
}

/** The fields of a run that lists show. */
export function shownOf(run: RunSummary): RunPreview {
  const { metadata, ...subTask } = run.subTask
  const large = metadata !== undefined && Buffer.byteLength(JSON.stringify(metadata)) > previewMetadataBytes
  return previewOf(large ? { ...run, subTask } : run, large)
}

export const durableOf = ({ dto, profile, where, epoch, stateRev }: SessionRow): DurableSession => ({
  id: dto.id,
  profile,
  status: dto.status,
  epoch,
  stateRev,
  ...where,
})

/** Where the conversation is after a run, and how long it was, as far as the run's end tells. */
export const whereAfter = (
  where: SessionRow['where'],
  { runtimeSessionId, runner, contextTokens }: SessionRow['where'],
): SessionRow['where'] => ({
  ...where,
  ...(runtimeSessionId === undefined ? {} : { runtimeSessionId }),
  ...(runner === undefined ? {} : { runner }),
  ...(contextTokens === undefined ? {} : { contextTokens }),
})

export function newSession(tenantId: string, id: string, profile: Profile, at: string): SessionRow {
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

/** A newly accepted run. Claiming it makes it the newest of its session. */
export function newRun({ tenantId, runId, sessionId, task }: StartRun, queuedAt?: string): RunRow {
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

/** What a file keeps of a run besides its task and how it ended. */
type Restored = Shown & Required<Pick<RunSummary, 'attempt' | 'startedAt'>>

/** A run of an earlier process. The contents of its attachments are gone, and the summary shows what they were. */
export function restoredRun(run: StartRun, { attachments, responseFormat, ...shown }: Restored): RunRow {
  const row = newRun(run)
  const info = { ...(attachments ? { attachments } : {}), ...(responseFormat ? { responseFormat } : {}) }
  return { ...row, summary: { ...row.summary, ...shown, subTask: { ...row.summary.subTask, ...info } } }
}

const ofTenant = <T extends { readonly tenantId: string }>(all: ReadonlyMap<string, T>, tenantId: string): T[] =>
  [...all.values()].filter((one) => one.tenantId === tenantId)

/** All rows, up to a limit. Beyond the limit the oldest finished runs and the longest-idle sessions are dropped. */
export class Rows {
  // Insertion order is age: of runs since their claim, of finished runs since their end, of sessions since their last use.
  readonly #runs = new Map<string, RunRow>()
  readonly #finished = new Set<string>()
  readonly #sessions = new Map<string, SessionRow>()
  readonly #limit: number

  /** `limit` bounds finished runs and idle sessions, each on its own. */
  constructor(limit: number) {
    this.#limit = limit
  }

  run(tenantId: string, runId: string): RunRow | undefined {
    return this.#runs.get(tenantKey(tenantId, runId))
  }
  /** Newest last. */
  runs(tenantId: string): RunRow[] {
    return ofTenant(this.#runs, tenantId)
  }
  /** Runs that the session began after its `ordinal`th run, in that order. */
  runsIn(tenantId: string, sessionId: string, ordinal: number): RunRow[] {
    return this.runs(tenantId)
      .filter((run) => run.summary.sessionId === sessionId && run.ordinal > ordinal)
      .sort((a, b) => a.ordinal - b.ordinal)
  }
  session(tenantId: string, sessionId: string): SessionRow | undefined {
    return this.#sessions.get(tenantKey(tenantId, sessionId))
  }
  /** How many runs of a tenant wait for their sessions. */
  waitingOf(tenantId: string): number {
    return this.sessions(tenantId).reduce((sum, { waiting }) => sum + waiting.length, 0)
  }
  sessions(tenantId: string): SessionRow[] {
    return ofTenant(this.#sessions, tenantId)
  }
  /** Adds a run, or moves it to the newest position. */
  putRun(run: RunRow): void {
    const key = tenantKey(run.tenantId, run.summary.runId)
    this.#runs.delete(key)
    this.#runs.set(key, run)
  }
  deleteRun({ tenantId, summary }: RunRow): void {
    this.#runs.delete(tenantKey(tenantId, summary.runId))
  }
  /** Marks a run as finished, so that it may be dropped from now on. */
  finished({ tenantId, summary }: RunRow): void {
    this.#finished.add(tenantKey(tenantId, summary.runId))
    for (const oldest of this.#finished) {
      if (this.#finished.size <= this.#limit) return
      this.#finished.delete(oldest)
      this.#runs.delete(oldest)
    }
  }
  /** Adds a session, or marks it as the most recently used. */
  putSession(session: SessionRow): void {
    const key = tenantKey(session.tenantId, session.dto.id)
    this.#sessions.delete(key)
    this.#sessions.set(key, session)
    if (this.#sessions.size <= this.#limit) return
    for (const [oldest, { claimRun, waiting }] of this.#sessions) {
      if (claimRun === undefined && waiting.length === 0) return void this.#sessions.delete(oldest)
    }
  }
  deleteSession({ tenantId, dto }: SessionRow): void {
    this.#sessions.delete(tenantKey(tenantId, dto.id))
  }
}

type Counts = Pick<RunStore, 'holdRuns' | 'countHeld' | 'countLogBytes' | 'countSessions' | 'countWaiting'>

/** How much each tenant uses of what its limits bound, where a single process holds everything. */
export class TenantUse implements Counts {
  readonly #rows: Rows
  readonly #held = new Map<string, number>()
  #logged = { day: '', bytes: new Map<string, number>() }

  constructor(rows: Rows) {
    this.#rows = rows
  }

  async holdRuns(tenantId: string, wanted: number, max: number): Promise<number> {
    const held = Math.min(wanted, max)
    if (held > 0) this.#held.set(tenantId, held)
    else this.#held.delete(tenantId)
    return held
  }
  async countHeld(tenantId: string): Promise<number> {
    return this.#held.get(tenantId) ?? 0
  }
  async countLogBytes(tenantId: string, bytes: number): Promise<number> {
    const day = new Date().toISOString().slice(0, 10)
    if (this.#logged.day !== day) this.#logged = { day, bytes: new Map() }
    const sum = (this.#logged.bytes.get(tenantId) ?? 0) + bytes
    this.#logged.bytes.set(tenantId, sum)
    return sum
  }
  async countSessions(tenantId: string, most: number): Promise<number> {
    const open = this.#rows.sessions(tenantId).filter(({ dto }) => dto.status !== 'shutdown')
    return Math.min(open.length, most)
  }
  async countWaiting(tenantId: string): Promise<number> {
    return this.#rows.waitingOf(tenantId)
  }
}
