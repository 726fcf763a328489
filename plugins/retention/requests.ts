import type { TenantTx } from '#contracts/database'
import { isLate, type Leaving, type LeftSession } from './runners.ts'

/** SQL: how an end user whose id is the second value of the statement is named where an index needs a short key. */
export const person = `sha256(convert_to($2, 'UTF8'))`

/** A request to erase an end user, which is on record until nothing is left. */
export interface Asked {
  /** What was deleted so far, by kind; data of plugins as `data.` with the plugin's name for it. */
  readonly rows: Readonly<Record<string, number>>
  /** No runner is waited for any more. */
  readonly late: boolean
}

const theirs = 'tenant_id = $1 AND end_user_id = $2'

export const askFor = (tx: TenantTx, endUserId: string): Promise<object[]> =>
  tx.query({
    text: `INSERT INTO end_user_erasures (tenant_id, end_user_id) VALUES ($1, $2)
           ON CONFLICT (tenant_id, end_user_id) DO UPDATE SET asked_at = end_user_erasures.asked_at`,
    values: [tx.tenantId, endUserId],
  })
export const askedFor = (tenantId: string, endUserId: string) => ({
  text: `SELECT erased_rows AS rows, ${isLate} AS late FROM end_user_erasures WHERE ${theirs}`,
  values: [tenantId, endUserId],
})
/** How many sessions of the end user have still to be told to a runner, whoever has noted them. */
export const untoldOf = (tenantId: string, endUserId: string) => ({
  text: `SELECT count(*)::int AS n FROM end_user_sessions WHERE tenant_id = $1 AND person = ${person}`,
  values: [tenantId, endUserId],
})
/** Begins the day that runners have to answer. */
export const beginWaiting = (tenantId: string, endUserId: string) => ({
  text: `UPDATE end_user_erasures SET untold_since = coalesce(untold_since, clock_timestamp()) WHERE ${theirs}`,
  values: [tenantId, endUserId],
})

/** Adds to what was deleted. Called in the transaction that deletes, so that a crash neither loses nor doubles a count. */
export async function tally(tx: TenantTx, endUserId: string, more: Asked['rows']): Promise<void> {
  if (Object.values(more).every((rows) => rows === 0)) return
  await tx.query({
    text: `UPDATE end_user_erasures SET erased_rows = (
             SELECT jsonb_object_agg(kind, rows) FROM (
               SELECT kind, sum(rows::bigint) AS rows FROM (
                 SELECT * FROM jsonb_each_text(erased_rows) UNION ALL SELECT * FROM jsonb_each_text($3::jsonb)) AS parts (kind, rows)
               GROUP BY kind) AS sums)
           WHERE ${theirs}`,
    values: [tx.tenantId, endUserId, JSON.stringify(more)],
  })
}

/**
 * Forgets the request, and entries of runs that were deleted by another transaction while they were entered. Not while sessions are noted: a repeated
 * request and a pass may erase the same person at once, and what one of them has noted is not known to the other.
 */
export async function forget(tx: TenantTx, endUserId: string): Promise<void> {
  const values = [tx.tenantId, endUserId]
  await tx.query({
    text: `DELETE FROM end_user_erasures WHERE ${theirs}
             AND NOT EXISTS (SELECT FROM end_user_sessions WHERE tenant_id = $1 AND person = ${person})`,
    values,
  })
  await tx.query({
    text: `DELETE FROM run_people p WHERE p.tenant_id = $1 AND p.person = ${person}
             AND NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = $1 AND r.id = p.run_id)`,
    values,
  })
}

/** SQL: deletes noted sessions, and the sessions themselves unless runs are left in them. Their ids are the last value of the statement. */
const dropNoted = (whose: string, ids: string): string => `
  WITH noted AS (DELETE FROM end_user_sessions n WHERE n.tenant_id = $1 AND ${whose} AND n.session_id = ANY(${ids}))
  DELETE FROM sessions s WHERE s.tenant_id = $1 AND s.id = ANY(${ids}) AND s.claim_run IS NULL
    AND NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = $1 AND r.session_id = s.id) RETURNING 1`

/** The sessions of erased runs. Those in which runs of others are left stay, and are shut down. */
export const sessionsOf = (endUserId: string, late: boolean): Leaving => ({
  late,
  page: (tx, after, limit) =>
    tx.query<LeftSession>({
      text: `SELECT session_id AS id, runner_hash AS runner FROM end_user_sessions
             WHERE tenant_id = $1 AND person = ${person} AND session_id > $3 ORDER BY session_id LIMIT $4`,
      values: [tx.tenantId, endUserId, after, limit],
    }),
  async drop(tx, ids, untold) {
    const gone = await tx.query({
      text: dropNoted(`n.person = ${person}`, '$3'),
      values: [tx.tenantId, endUserId, ids],
    })
    await tally(tx, endUserId, { sessions: gone.length, untoldSessions: untold })
    return gone.length
  },
})

/** SQL: nobody's request is left that the noted session `n` belongs to. */
const isLost = `NOT EXISTS (
  SELECT FROM end_user_erasures e WHERE e.tenant_id = $1 AND sha256(convert_to(e.end_user_id, 'UTF8')) = n.person)`
/** Noted sessions whose request was forgotten before its runners were told, as a release before this one could do. */
export const lostSessions: Leaving = {
  late: false,
  page: (tx, after, limit) =>
    tx.query<LeftSession>({
      text: `SELECT DISTINCT ON (n.session_id) n.session_id AS id, n.runner_hash AS runner FROM end_user_sessions n
             WHERE n.tenant_id = $1 AND n.session_id > $2 AND ${isLost} ORDER BY n.session_id LIMIT $3`,
      values: [tx.tenantId, after, limit],
    }),
  drop: async (tx, ids) => (await tx.query({ text: dropNoted(isLost, '$2'), values: [tx.tenantId, ids] })).length,
}
