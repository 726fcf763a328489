import type { Statement } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import { type PromptFields, promptFieldsOf, type PromptInfo, promptInfoOf } from '#contracts/prompt'
import type { Usage } from '#contracts/run-event'
import type { DurableSession, StartRun } from '#contracts/run-store'
import type { LogChunk, ParentRun, RunStatus, RunSummary, Task } from '#contracts/runs'
import type { Session, SessionStatus } from '#contracts/sessions'

export interface RunRow {
  readonly id: string
  readonly session_id: string
  readonly profile: string
  readonly status: RunStatus
  readonly prompt: string
  readonly metadata: unknown
  readonly queued_at: Date | string | null
  readonly started_at: Date | string
  readonly finished_at: Date | string | null
  readonly result: string | null
  readonly error_code: string | null
  readonly error_message: string | null
  readonly usage: Usage | null
  readonly attempt: number
  readonly input_info: PromptInfo | null
  readonly parent: ParentRun | null
}
export const runColumns =
  'id, session_id, profile, status, prompt, metadata, queued_at, started_at, finished_at, result, error_code, error_message, usage, attempt, input_info, parent'

export const runById = {
  name: 'run-by-id',
  text: `SELECT ${runColumns} FROM runs WHERE tenant_id = $1 AND id = $2`,
}

export interface SessionRow {
  readonly id: string
  readonly profile: string
  readonly runtime: string
  readonly status: SessionStatus
  readonly created_at: Date | string
  readonly last_used_at: Date | string
  readonly last_prompt: string | null
  readonly last_run_status: string | null
  readonly run_count: number
}
export const sessionColumns =
  'id, profile, runtime, status, created_at, last_used_at, last_prompt, last_run_status, run_count'

export interface DurableRow {
  readonly id: string
  readonly profile_snapshot: Profile
  readonly status: SessionStatus
  readonly runtime_session_id: string | null
  readonly state_rev: number
  readonly runner_hash: string | null
  readonly epoch: number
}
export const durableColumns =
  'id, profile_snapshot, status, runtime_session_id, state_rev::int AS state_rev, runner_hash, claim_epoch::int AS epoch'

export interface ChunkRow {
  readonly first_seq: number
  readonly count: number
  readonly lines: Buffer
}

const iso = (time: Date | string): string => new Date(time).toISOString()

export const toRun = (row: RunRow): RunSummary => ({
  runId: row.id,
  sessionId: row.session_id,
  status: row.status,
  subTask: {
    id: row.id,
    sessionId: row.session_id,
    profile: row.profile,
    prompt: row.prompt,
    ...(row.metadata === null ? {} : { metadata: row.metadata }),
    ...row.input_info,
  },
  ...(row.parent === null ? {} : { parent: row.parent }),
  ...(row.queued_at === null ? {} : { queuedAt: iso(row.queued_at) }),
  startedAt: iso(row.started_at),
  ...(row.finished_at === null ? {} : { finishedAt: iso(row.finished_at) }),
  attempt: row.attempt,
  ...(row.error_code === null ? {} : { error: { code: row.error_code, message: row.error_message ?? '' } }),
  ...(row.result === null ? {} : { result: row.result }),
  ...(row.usage === null ? {} : { usage: row.usage }),
  ...(row.usage?.costCents === undefined ? {} : { costCents: row.usage.costCents }),
})

export const toSession = (row: SessionRow): Session => ({
  id: row.id,
  profile: row.profile,
  runtime: row.runtime,
  status: row.status,
  createdAt: iso(row.created_at),
  lastUsedAt: iso(row.last_used_at),
  ...(row.last_prompt === null ? {} : { lastPrompt: row.last_prompt }),
  ...(row.last_run_status === null ? {} : { lastRunStatus: row.last_run_status }),
  runCount: row.run_count,
})

export const toDurable = (row: DurableRow): DurableSession => ({
  id: row.id,
  profile: row.profile_snapshot,
  status: row.status,
  ...(row.runtime_session_id === null ? {} : { runtimeSessionId: row.runtime_session_id }),
  epoch: row.epoch,
  stateRev: row.state_rev,
  ...(row.runner_hash === null ? {} : { runner: row.runner_hash }),
})

export const toChunk = (row: ChunkRow): LogChunk => ({ firstSeq: row.first_seq, count: row.count, lines: row.lines })

/** A claimed run as whoever executes it needs it. */
export interface TaskRow extends DurableRow {
  readonly run_id: string
  readonly prompt: string
  readonly metadata: Record<string, unknown> | null
  readonly input: PromptFields | null
  /** Absent of what waited: only a new session's run was delegated. */
  readonly parent?: ParentRun | null
}
export const toTask = (row: TaskRow): Task => ({
  id: row.run_id,
  sessionId: row.id,
  profile: row.profile_snapshot.name,
  prompt: row.prompt,
  ...(row.metadata === null ? {} : { metadata: row.metadata }),
  ...row.input,
  ...(row.parent ? { parent: row.parent } : {}),
})

/** Values of a new row of `runs`. */
export function runValues({ tenantId, runId, sessionId, task }: Omit<StartRun, 'create'>) {
  const input = task.attachments || task.responseFormat ? promptFieldsOf(task) : undefined
  return {
    tenant: tenantId,
    run: runId,
    session: sessionId,
    profile: task.profile,
    prompt: storable(task.prompt),
    metadata: task.metadata && JSON.stringify(task.metadata),
    webhook: task.webhook?.url,
    input: input && JSON.stringify(input),
    inputInfo: input && JSON.stringify(promptInfoOf(task)),
  }
}

/** PostgreSQL text holds no NUL. Only summaries are written this way: the event log keeps the exact bytes. */
export const storable = (text: string): string => text.replaceAll('\0', '\uFFFD')

/**
 * A prepared statement whose text says `:name` where PostgreSQL wants `$1`. Every value that the text names must be given;
 * undefined is null.
 */
export function prepared(name: string, text: string): (values: Readonly<Record<string, unknown>>) => Statement {
  const names: string[] = []
  const numbered = text.replaceAll(/(?<![:\w]):([a-z]\w*)/gi, (_, found: string) => {
    if (!names.includes(found)) names.push(found)
    return `$${names.indexOf(found) + 1}`
  })
  return (values) => ({ name, text: numbered, values: names.map((one) => values[one] ?? null) })
}
