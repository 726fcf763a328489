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

/** The condition for memories that have not expired. */
export const alive = '(m.expires_at IS NULL OR m.expires_at > now())'
/** SQL for the time of the event in a memory; without one, the time at which the memory was stored. */
export const happened = 'coalesce(m.event_at, m.created_at)'

/**
 * The number that stands for an end user in postings. It is a hash, so end users may share one, and a search compares the id as well. 0: no end
 * user.
 */
export function personOf(endUserId: string | undefined): number {
  if (endUserId === undefined) return 0
  return createHash('sha256').update(endUserId).digest().readInt32BE(0) || 1
}

/**
 * Runs before statements that look up memories, and makes PostgreSQL use indexes only. A plan made while a table was empty would still scan the
 * whole table after it has grown. Generic plans are forced, because planning anew took a fifth of a search's time.
 */
export const byIndex: Statement = {
  name: 'memory-by-index',
  text: `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
           set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
           set_config('plan_cache_mode', 'force_generic_plan', true)`,
}

/** Selects memories by profile and end user. */
export interface Whose {
  readonly endUserId?: string | undefined
  /** Includes memories without an end user. */
  readonly shared?: boolean | undefined
}

/** The person numbers whose postings are read; null for all persons. */
export const personsOf = ({ endUserId, shared = false }: Whose): readonly number[] | null =>
  endUserId === undefined ? (shared ? [0] : null) : shared ? [personOf(endUserId), 0] : [personOf(endUserId)]

/**
 * The condition on a row `m`, for the parameters `$user::text` and `$shared::boolean`. `$shared` without `$user` selects only memories without an
 * end user.
 */
export const isOf = (user: string, shared: string): string =>
  `(CASE WHEN ${user}::text IS NULL THEN NOT ${shared}::boolean OR m.end_user_id IS NULL
     ELSE m.end_user_id = ${user}::text OR (${shared}::boolean AND m.end_user_id IS NULL) END)`
