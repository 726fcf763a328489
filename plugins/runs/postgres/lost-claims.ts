import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import { tenantKey } from '#contracts/ids'
import type { EndReason, RunStore } from '#contracts/run-store'
import type { Instance } from './instance.ts'
import type { Orphans } from './orphans.ts'
import { prepared, read } from './rows.ts'

/** Milliseconds after a lost answer during which the server may still execute the statement. */
const doubtMs = 60_000
/** Milliseconds that a claimed run may lack an executor before it counts as lost. */
const begunMs = 5_000

const listOwn = prepared(
  'run-list-own',
  `SELECT id FROM runs
   WHERE tenant_id = :tenant AND claim_owner = :owner AND status = 'running'
     AND (started_at > now() - interval '25 hours' OR waited_ms IS NOT NULL)`,
)
const lost: EndReason = {
  code: 'interrupted',
  message: 'The server lost touch with the database just when the run began.',
}

/**
 * Finds claims that were committed although their answer was lost. The owner is alive, so no orphan sweep takes the run, yet nobody executes it.
 * Its session would stay busy until this process ends.
 */
export function createLostClaims(
  db: Database,
  instance: Instance,
  { steal, goOn }: Pick<Orphans, 'steal' | 'goOn'>,
  waitMs = begunMs,
) {
  /** Tenants with a lost answer, each with the time until which they are checked. */
  const doubts = new Map<string, number>()
  /** When each claimed run was first seen without an executor. */
  const seen = new Map<string, number>()
  let executes: Parameters<RunStore['executing']>[0] | undefined

  const look = async (tenantId: string, now: number): Promise<void> => {
    const runs = await read<{ id: string }>(db, tenantId, listOwn({ tenant: tenantId, owner: instance.id }))
    for (const { id } of runs) {
      const key = tenantKey(tenantId, id)
      const since = seen.get(key) ?? now
      if (executes?.(tenantId, id) !== false) seen.delete(key)
      else if (now - since < waitMs) seen.set(key, since)
      else {
        seen.delete(key)
        if (!(await goOn(tenantId, instance.id, id))) await steal(tenantId, id, 'interrupted', lost)
      }
    }
  }
  return {
    /** Called when a claim failed with an error that does not rule out its commit. Rethrows the error. */
    doubt(tenantId: string, error: unknown): never {
      if (isAppError(error) && error.status === 503) doubts.set(tenantId, Date.now() + doubtMs)
      throw error
    },
    executing(check: Parameters<RunStore['executing']>[0]): void {
      executes = check
    },
    /** Ends the runs that this process owns and does not execute, in tenants with a lost answer. */
    async sweep(): Promise<void> {
      const now = Date.now()
      for (const [tenantId, until] of doubts) {
        await look(tenantId, now)
        if (now > until) doubts.delete(tenantId)
      }
      if (doubts.size === 0) seen.clear()
    },
  }
}

export type LostClaims = ReturnType<typeof createLostClaims>
