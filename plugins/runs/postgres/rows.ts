import type { Database, Statement } from '#contracts/database'
import { type PromptFields, type PromptInfo } from '#contracts/prompt'
import { microcentsPerCent } from '#contracts/prices'
import type { Claim, DurableSession } from '#contracts/run-store'
import type { LogChunk } from '#contracts/run-event'
import {
  previewChars,
  previewMetadataBytes,
  previewOf,
  type RunPreview,
  type RunSummary,
  type Task,
} from '#contracts/runs'
import type { Session } from '#contracts/sessions'

/**
 * A prepared statement whose text writes `:name` where PostgreSQL expects `$1`. Every value that the text names must be given; undefined is sent as
 * null.
 */
export function prepared(name: string, text: string): (values: Readonly<Record<string, unknown>>) => Statement {
  const names: string[] = []
  const numbered = text.replaceAll(/(?<![:\w]):([a-z]\w*)/gi, (_, found: string) => {
    if (!names.includes(found)) names.push(found)
    return `$${names.indexOf(found) + 1}`
  })
  return (values) => ({ name, text: numbered, values: names.map((one) => values[one] ?? null) })
}

/**
 * Removes NUL, which PostgreSQL text cannot hold. Only summaries are written this way; the event log keeps the exact bytes. It is not the kit's,
 * because every chat would enter one more file for it.
 */
export const storable = (text: string): string => text.replaceAll('\0', '\uFFFD')
export const storableOrNull = (text: string | undefined): string | null => (text === undefined ? null : storable(text))

/** Cents as whole microcents, the unit of the money columns. */
export const microcents = (cents: number): number =>
  Math.min(Math.round(cents * microcentsPerCent), Number.MAX_SAFE_INTEGER)

// `finished_at IS NULL` equals `status IN ('queued', 'running')` by policy, and no claim has the epoch of a queued run. This wording keeps the
// planner from the partial index of running runs. On a table without statistics the planner would prefer that index to the primary key and read
// every running run of the tenant.
/** The row of `runs` that a claim holds. */
export const claimed = 'tenant_id = :tenant AND id = :run AND finished_at IS NULL AND claim_epoch = :epoch'

/** The rows of one statement in a transaction of its own, so that a large answer delays no other unit of work. */
export async function read<Row extends object>(db: Database, tenantId: string, statement: Statement): Promise<Row[]> {
  return (await db.batch<[Row[]]>(tenantId, [statement]))[0]
}

/**
 * The bytes of a run's inline attachments as base64, from what its row tells of them: their contents are not read. The text is searched because
 * PostgreSQL takes no JSON apart that has a NUL in a name. No string can hold what is searched for, since its quotes are escaped.
 */
export const attachmentBytes = `(
  SELECT coalesce(sum(ceil(found[1]::float8 / 3) * 4), 0)
  FROM regexp_matches(input_info::text, '"bytes":([0-9]+)(,"sha256")?', 'g') AS found WHERE found[2] IS NULL)`

/** A row as PostgreSQL returns it: absent fields are null, and columns have the names of the fields. */
type Row<T> = {
  readonly [Field in keyof T]-?: undefined extends T[Field] ? Exclude<T[Field], undefined> | null : T[Field]
}

function withoutNulls<T extends object>(row: Row<T>): T {
  const made: Record<string, unknown> = {}
  for (const [field, value] of Object.entries(row)) if (value !== null) made[field] = value
  return made as T
}

type SubTaskFields = Omit<RunSummary['subTask'], keyof PromptInfo>
type RunFields = Omit<RunSummary, 'subTask' | 'error' | 'costCents' | 'attempt'>
export interface RunRow extends Row<RunFields> {
  readonly attempt: number
  readonly profile: string
  readonly prompt: string
  readonly metadata: unknown
  readonly inputInfo: PromptInfo | null
  readonly errorCode: string | null
  readonly errorMessage: string | null
}
const columnsOfRun = `id AS "runId", session_id AS "sessionId", status, profile, parent, queued_at AS "queuedAt",
  started_at AS "startedAt", finished_at AS "finishedAt", attempt, usage`
const result = `CASE WHEN public_run IS NULL OR status <> 'ok' THEN result ELSE coalesce(result, (
    SELECT content FROM messages m
    WHERE m.tenant_id = runs.tenant_id AND m.public_run_id = runs.public_run AND m.role = 'assistant'
  )) END`
const runColumns = `${columnsOfRun}, prompt, metadata, input_info AS "inputInfo", error_code AS "errorCode",
  error_message AS "errorMessage", ${result} AS result`

export const runById = prepared('run-by-id', `SELECT ${runColumns} FROM runs WHERE tenant_id = :tenant AND id = :run`)

export function toRun(row: RunRow): RunSummary {
  const { profile, prompt, metadata, inputInfo, errorCode, errorMessage, ...fields } = row
  const { runId: id, sessionId, usage } = fields
  return withoutNulls<RunSummary>({
    ...fields,
    subTask: { ...withoutNulls<SubTaskFields>({ id, sessionId, profile, prompt, metadata }), ...inputInfo },
    error: errorCode === null ? null : { code: errorCode, message: errorMessage ?? '' },
    costCents: usage?.costCents ?? null,
  })
}

export interface PreviewRow extends RunRow {
  readonly metadataCut: boolean
}
// `left` reads only the beginning of a text that is stored out of line; one extra character shows that there is more. Metadata is measured by its
// stored bytes without being read, and only metadata that is still small is unpacked.
const beginOf = (text: string): string => `left(${text}, ${previewChars + 1})`
const metadataCut = `CASE WHEN metadata IS NULL THEN false WHEN pg_column_size(metadata) > ${previewMetadataBytes + 8} THEN true
  ELSE octet_length(metadata::text) > ${previewMetadataBytes} END`
export const previewColumns = `${columnsOfRun}, ${beginOf('prompt')} AS prompt, ${metadataCut} AS "metadataCut",
  CASE WHEN NOT (${metadataCut}) THEN metadata END AS metadata, NULL AS "inputInfo", ${beginOf('error_code')} AS "errorCode",
  ${beginOf('error_message')} AS "errorMessage", ${beginOf(result)} AS result`
export const toPreview = ({ metadataCut, ...row }: PreviewRow): RunPreview => previewOf(toRun(row), metadataCut)

export type SessionRow = Row<Session>
export const sessionColumns = `id, profile, runtime, status, created_at AS "createdAt", last_used_at AS "lastUsedAt",
  last_prompt AS "lastPrompt", last_run_status AS "lastRunStatus", run_count AS "runCount"`
export const toSession = (row: SessionRow): Session => withoutNulls<Session>(row)

export type DurableRow = Row<DurableSession>
/** Columns of a session. The profile snapshot has a name that differs from the profile's name column. */
export const durableColumns = `id, profile_snapshot AS profile, status, runtime_session_id AS "runtimeSessionId", claim_epoch::int AS epoch,
  state_rev::int AS "stateRev", runner_hash AS runner, context_tokens::float8 AS "contextTokens"`
export const toDurable = ({
  id,
  profile,
  status,
  runtimeSessionId,
  epoch,
  stateRev,
  runner,
  contextTokens,
}: DurableRow): DurableSession =>
  withoutNulls<DurableSession>({ id, profile, status, runtimeSessionId, epoch, stateRev, runner, contextTokens })

export interface ChunkRow {
  readonly first_seq: number
  readonly count: number
  readonly lines: Buffer
}
export const toChunk = (row: ChunkRow): LogChunk => ({ firstSeq: row.first_seq, count: row.count, lines: row.lines })

/** A claimed run with its session, as its executor needs it. */
export interface TaskRow extends DurableRow {
  readonly run_id: string
  readonly prompt: string
  readonly metadata: Record<string, unknown> | null
  readonly input: PromptFields | null
  /** Absent for a run that was queued: only the first run of a new session can be delegated. */
  readonly parent?: Task['parent'] | null
}
export const toTask = ({ run_id, id, profile, prompt, metadata, input, parent }: TaskRow): Task => ({
  id: run_id,
  sessionId: id,
  profile: profile.name,
  prompt,
  ...(metadata === null ? {} : { metadata }),
  ...input,
  ...(parent ? { parent } : {}),
})

/** A run that was taken from its owner or its queue. */
export interface Taken {
  readonly id: string
  readonly session_id: string
  readonly epoch: number
  readonly public_run?: string | null | undefined
  /** The runtime of the session. Absent for a run that was never started. */
  readonly runtime?: string
}
export const claimOf = (tenantId: string, { id, session_id, epoch, public_run }: Taken): Claim => ({
  tenantId,
  sessionId: session_id,
  runId: id,
  epoch,
  ...(public_run ? { publicRunId: public_run } : {}),
})
