import type { FastifyBaseLogger } from 'fastify'
import type { Database, Statement } from '#contracts/database'
import { tenantIds } from '#kit'
import { isAppError } from '#kernel'
import { endUserOf } from '#contracts/apps'
import type { ProfileMemory } from '#contracts/memory'
import { lock } from './bank/statements.ts'
import type { Writer } from './bank/write.ts'
import type { VectorList } from './search/vectors.ts'

/**
 * Milliseconds that deleting and embedding may each take for one tenant in a pass, so that other tenants get their turn. The rest of the work
 * follows in the next pass.
 */
const usualTurnMs = 20_000
/** The most rows that one transaction deletes. */
const deletedAtOnce = 200

// Expired memories are never shown. Under a legal hold they are kept all the same.
const expired = (tenantId: string): Statement => ({
  name: 'memory-expired',
  text: `DELETE FROM memories WHERE tenant_id = $1 AND id = ANY (ARRAY(
           SELECT m.id FROM memories m WHERE m.tenant_id = $1 AND m.expires_at <= now() AND NOT EXISTS (SELECT FROM tenants WHERE id = $1 AND legal_hold)
           ORDER BY m.expires_at LIMIT ${deletedAtOnce})) RETURNING 1`,
  values: [tenantId],
})
/** Deletes the recalled memories of runs that no longer exist, because no conversation is restored from them any more. */
const orphaned = (tenantId: string): Statement => ({
  name: 'memory-recalls-orphaned',
  text: `DELETE FROM memory_recalls WHERE tenant_id = $1 AND run_id = ANY (ARRAY(
           SELECT r.run_id FROM memory_recalls r WHERE r.tenant_id = $1 AND r.at < now() - interval '1 hour'
             AND NOT EXISTS (SELECT FROM runs o WHERE o.tenant_id = $1 AND o.id = r.run_id) LIMIT ${deletedAtOnce})) RETURNING 1`,
  values: [tenantId],
})

/** Forgets erasures after 90 days. No run lasts that long, so no run that began before the erasure is left. */
const forgotten = (tenantId: string): Statement => ({
  name: 'memory-erasures-forgotten',
  text: `DELETE FROM memory_erasures WHERE tenant_id = $1 AND at < now() - interval '90 days'`,
  values: [tenantId],
})

export interface SweepParts {
  readonly database: Database
  readonly vectors: VectorList | undefined
  readonly writer: Writer
  readonly log: Pick<FastifyBaseLogger, 'warn'>
  readonly turnMs?: number
}

/** For all tenants: deletes expired rows, makes memories from conversations, and embeds memories without a vector. */
export async function sweepTenants(parts: SweepParts, signal: AbortSignal): Promise<void> {
  const { database, vectors, writer, log, turnMs = usualTurnMs } = parts
  const turn = (): AbortSignal => AbortSignal.any([signal, AbortSignal.timeout(turnMs)])
  const reads = database.as('reads')
  for await (const id of tenantIds(reads, 'stored')) {
    const deleting = turn()
    for (let full = true; full && !deleting.aborted;) {
      const [, gone, recalls] = await reads.batch<[object[], object[], object[]]>(id, [
        { ...lock, values: [id] },
        expired(id),
        orphaned(id),
        forgotten(id),
      ])
      full = gone.length === deletedAtOnce || recalls.length === deletedAtOnce
    }
    if (signal.aborted) return
    await mine({ database, writer, log }, id, signal).catch((err: unknown) => {
      log.warn({ err, tenant: id }, 'conversations could not be mined; it is tried again')
    })
    await vectors?.embed(id, turn()).catch((err: unknown) => {
      log.warn({ err, tenant: id }, 'memories could not be embedded; it is tried again')
    })
  }
}

/** Runs of one read, and runs of one tenant in one pass. With a model fewer runs are mined, because each may cost a request to the model. */
const runsAtOnce = 50
const mostByRules = 1_000
const mostByModel = 200
/** Milliseconds that a pass spends on one tenant, so that the other tenants get their turn. The remaining runs follow in the next pass. */
const longestMs = 20_000
/** The most characters of a message that are read. */
const mostSaid = 8_000
/** Older messages are skipped, so that a tenant with more messages than can be mined does not fall behind for ever. */
const longest = `interval '1 day'`

const edge: Omit<Statement, 'values'> = {
  name: 'memory-mining-edge',
  text: `WITH asking AS MATERIALIZED (
           SELECT EXISTS (SELECT FROM profiles WHERE tenant_id = $1 AND document -> 'memory' -> 'extract' = 'true') AS wanted
         ), gone AS (
           DELETE FROM memory_mining WHERE tenant_id = $1 AND NOT (SELECT wanted FROM asking)
         ), begun AS (
           -- As long ago as the last pass may have been: what was said since the profile asks for it.
           INSERT INTO memory_mining (tenant_id, recorded_at) SELECT $1, now() - interval '5 minutes' FROM asking WHERE wanted
           ON CONFLICT DO NOTHING RETURNING recorded_at, run_id
         )
         SELECT e.recorded_at::text AS at, e.run_id AS run FROM (
           SELECT recorded_at, run_id FROM begun UNION ALL SELECT recorded_at, run_id FROM memory_mining WHERE tenant_id = $1
         ) e, asking WHERE asking.wanted`,
}
/**
 * Messages of people in runs that ended as `ok`, in the order in which the ends were recorded. A transaction that is still open may add
 * earlier ends, so the list stops at the oldest one. Tasks from other agents are left out. `recalled`: the memories that the
 * conversation was given.
 */
const said: Omit<Statement, 'values'> = {
  name: 'memory-mining-said',
  text: `WITH safe AS MATERIALIZED (
           SELECT least(clock_timestamp() - interval '1 second', (
             SELECT min(xact_start) FROM pg_stat_activity
             WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
           )) AS at
         ), ended AS MATERIALIZED (
           SELECT recorded_at, run_id, session_id, profile, status FROM run_meters
           WHERE tenant_id = $1 AND (recorded_at, run_id) > (greatest($2::timestamptz, now() - ${longest}), $3)
             AND recorded_at < (SELECT at FROM safe)
           ORDER BY recorded_at, run_id LIMIT ${runsAtOnce}
         )
         SELECT e.recorded_at::text AS "recordedAt", e.run_id AS "runId", e.session_id AS "sessionId", e.profile,
           p.document -> 'memory' AS memory, left(r.prompt, ${mostSaid}) AS prompt, r.metadata, r.started_at AS at,
           (SELECT u.end_user_id FROM public_runs u WHERE u.tenant_id = $1 AND u.id = r.public_run) AS "endUserId",
           ARRAY(SELECT m.content FROM runs s JOIN memory_recalls c ON c.tenant_id = $1 AND c.run_id = s.id
             JOIN memories m ON m.tenant_id = $1 AND m.id = c.memory_id
             WHERE s.tenant_id = $1 AND s.session_id = e.session_id LIMIT 100) AS recalled
         FROM ended e
           LEFT JOIN runs r ON r.tenant_id = $1 AND r.id = e.run_id AND r.parent IS NULL AND e.status = 'ok'
           LEFT JOIN profiles p ON r.id IS NOT NULL AND p.tenant_id = $1 AND p.name = e.profile AND p.document -> 'memory' -> 'extract' = 'true'
         ORDER BY e.recorded_at, e.run_id`,
}
const advance: Omit<Statement, 'values'> = {
  name: 'memory-mining-advance',
  text: 'UPDATE memory_mining SET recorded_at = $2, run_id = $3 WHERE tenant_id = $1',
}

interface Said {
  readonly recordedAt: string
  readonly runId: string
  readonly sessionId: string
  readonly profile: string
  /** Null if the profile does not extract memories, or if no person said anything. */
  readonly memory: ProfileMemory | null
  readonly prompt: string
  readonly metadata: Record<string, unknown> | null
  readonly at: string
  readonly endUserId: string | null
  readonly recalled: readonly string[]
}

interface MiningParts {
  readonly database: Database
  readonly writer: Writer
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/** Makes memories from what people said since the last pass, for profiles with `memory.extract`. */
async function mine({ database, writer, log }: MiningParts, tenantId: string, signal: AbortSignal): Promise<void> {
  const reads = database.as('reads')
  let most = writer.asksModel(tenantId) ? mostByModel : mostByRules
  const [[from]] = await reads.batch<[{ at: string; run: string }[]]>(tenantId, [{ ...edge, values: [tenantId] }])
  const until = performance.now() + longestMs
  for (let last = from; last && most > 0 && !signal.aborted;) {
    const [runs] = await reads.batch<[Said[]]>(tenantId, [{ ...said, values: [tenantId, last.at, last.run] }])
    for (const run of runs) {
      if (signal.aborted || performance.now() > until) return
      if (run.memory) {
        if (!(await learn(writer, tenantId, run)))
          return log.warn({ tenantId }, 'memories of conversations are not stored: limit_exceeded')
        most--
      }
      last = { at: run.recordedAt, run: run.runId }
      // The position is stored after each write, so that an interrupted pass repeats nothing.
      if (run.memory || run === runs.at(-1))
        await reads.batch(tenantId, [{ ...advance, values: [tenantId, last.at, last.run] }])
    }
    if (runs.length < runsAtOnce) return
  }
}

/**
 * Resolves to false if the tenant has reached its limit on memories. A memory belongs to the end user who said it. Without an end user everybody
 * would see the memory, so it is stored only if the profile's scope is `profile`.
 */
async function learn(writer: Writer, tenantId: string, run: Said): Promise<boolean> {
  const { profile, sessionId, runId, prompt, at, recalled } = run
  const endUserId = run.endUserId ?? endUserOf(run.metadata ?? undefined)
  if (endUserId === undefined && run.memory?.scope !== 'profile') return true
  const origin = {
    sessionId,
    runId,
    eventAt: new Date(at).toISOString(),
    ...(endUserId === undefined ? {} : { endUserId }),
  }
  try {
    await writer.learn(tenantId, profile, { said: prompt, recalled }, origin)
    return true
  } catch (error) {
    if (isAppError(error) && error.code === 'limit_exceeded') return false
    throw error
  }
}
