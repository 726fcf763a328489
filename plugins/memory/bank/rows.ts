import { createHash } from 'node:crypto'
import type { Statement } from '#contracts/database'
import type { Memory } from '../schema.ts'

/** The columns of a memory, as clients read it. */
export const columns = `m.id, m.profile, m.end_user_id AS "endUserId", m.session_id AS "sessionId", m.run_id AS "runId", m.category,
  m.raw_input AS "rawInput", m.content AS "processedContent", m.summary, m.source, round(m.confidence::numeric, 3)::float8 AS confidence,
  m.language, m.event_at AS "eventAt", m.created_at AS "createdAt", m.ttl_seconds AS "ttlSeconds", m.expires_at AS "expiresAt",
  m.supersedes, m.superseded_by AS "supersededBy", m.superseded_at AS "supersededAt"`

type Nullable<T> = { readonly [Field in keyof T]: T[Field] | null }
export type MemoryRow = Nullable<Required<Memory>>

export const toMemory = (row: MemoryRow): Memory =>
  Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null)) as Memory

/** What is not over. */
export const alive = '(m.expires_at IS NULL OR m.expires_at > now())'
/** When it happened, as far as that is known. */
export const happened = 'coalesce(m.event_at, m.created_at)'

/** Stands for an end user in postings: some share a number, so whoever finds by it compares the id as well. 0 is nobody. */
export function personOf(endUserId: string | undefined): number {
  if (endUserId === undefined) return 0
  return createHash('sha256').update(endUserId).digest().readInt32BE(0) || 1
}

/**
 * Before statements that look memories up: by indexes alone, whatever the planner takes the tables to be like. A plan that was made
 * while they were empty would read all of them, and go on doing so. With nothing to choose from, one plan does for all values: some were
 * made anew for each search, in a fifth of its time.
 */
export const byIndex: Statement = {
  name: 'memory-by-index',
  text: `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
           set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
           set_config('plan_cache_mode', 'force_generic_plan', true)`,
}

/** Whose memories are meant. */
export interface Whose {
  readonly endUserId?: string | undefined
  /** Also those without an end user. */
  readonly shared?: boolean | undefined
}

/** The persons that postings are looked up for; null for any. */
export const personsOf = ({ endUserId, shared = false }: Whose): readonly number[] | null =>
  endUserId === undefined ? (shared ? [0] : null) : shared ? [personOf(endUserId), 0] : [personOf(endUserId)]

/** The condition on a row `m`, for parameters `$user::text` and `$shared::boolean`. Shared without a user: only those without an end user. */
export const isOf = (user: string, shared: string): string =>
  `(CASE WHEN ${user}::text IS NULL THEN NOT ${shared}::boolean OR m.end_user_id IS NULL
     ELSE m.end_user_id = ${user}::text OR (${shared}::boolean AND m.end_user_id IS NULL) END)`
