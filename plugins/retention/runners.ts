import type { FastifyBaseLogger } from 'fastify'
import pLimit from 'p-limit'
import { isAppError } from '#kernel'
import type { TenantTx } from '#contracts/database'
import type { Fleet } from '#contracts/runner'
import type { Batch, Batches } from './batches.ts'

/** Calls of runners at once for one deletion. */
const callsAtOnce = 16
/** Sessions of one page. When each is on another runner that does not answer, their transaction is still in time. */
const sessionsAtOnce = 48

/** SQL: an erasure whose first untold session is so long ago waits for no runner any more. */
export const isLate = `coalesce(untold_since < now() - interval '1 day', false)`

/** A session that is erased, and the runner that executed its last run. */
export interface LeftSession {
  readonly id: string
  readonly runner: string | null
}

export interface Runners {
  /** Undefined in a role without runners: then there are no other copies of sessions. */
  readonly fleet: Pick<Fleet, 'owner'> | undefined
  readonly batches: Batches
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/**
 * Tells runners to delete their copies of sessions, with their sandboxes. Resolves to the sessions of which that failed: their runner keeps its copy
 * until it needs the room or restarts; no run can start in the session again. A runner that cannot be reached is noted in `away`, and is not asked
 * again. A runner that this conductor does not know any more is left out.
 */
async function tellRunners(
  { fleet, log }: Runners,
  tenantId: string,
  sessions: readonly LeftSession[],
  away: Set<string>,
): Promise<ReadonlySet<string>> {
  const untold = new Set<string>()
  const some = pLimit(callsAtOnce)
  const tell = async ({ id, runner }: LeftSession): Promise<void> => {
    const link = fleet?.owner(id, runner ?? undefined)
    if (!link) return
    try {
      if (!away.has(link.hash)) return await link.deleteSession(tenantId, id)
    } catch (err) {
      // One session that fails, or takes too long, says nothing of the others of its runner.
      if (isAppError(err) && err.retryable) away.add(link.hash)
      log.warn({ err, sessionId: id }, 'a runner could not be told that a session is erased')
    }
    untold.add(id)
  }
  await Promise.all(sessions.map((session) => some(() => tell(session))))
  return untold
}

/** The sessions of an erasure. */
export interface Leaving {
  /** No runner is waited for any more: what it was not told of goes as well. */
  readonly late: boolean
  /** The next sessions in the order of ids. */
  page(tx: TenantTx, after: string, limit: number): Promise<LeftSession[]>
  /** Deletes sessions, and resolves to how many there were. `untold`: of how many of them a runner may have a copy. */
  drop(tx: TenantTx, ids: readonly string[], untold: number): Promise<number>
}

/**
 * Deletes sessions, each after its runner was told, so that a walk that is cut off goes on where it was. Resolves to how many runners were not told
 * of, because they did not answer.
 */
export async function leaveRunners(
  parts: Runners,
  tenantId: string,
  { late, page, drop }: Leaving,
  signal: AbortSignal,
): Promise<number> {
  const away = new Set<string>()
  let untold = 0
  const some: Batch = async (tx, most, place) => {
    const limit = Math.min(most, sessionsAtOnce)
    const found = await page(tx, place?.[0] ?? '', limit)
    const left = await tellRunners(parts, tenantId, found, away)
    untold += left.size
    const gone = found.flatMap(({ id }) => (left.has(id) && !late ? [] : [id]))
    const deleted = gone.length === 0 ? 0 : await drop(tx, gone, late ? left.size : 0)
    return { deleted: { sessions: deleted }, next: found.length < limit ? undefined : [found.at(-1)!.id] }
  }
  await parts.batches.all(tenantId, some, signal)
  return untold
}
