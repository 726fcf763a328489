import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { tenantIds } from './sweep.ts'

const everyMs = 30_000
/** A tenant is looked at for this long after its last chat: its last minute has to be over, and late commits to be in. */
const quietMs = 3 * 60_000
/** All tenants, so that what a gateway accepted that has died since is counted too. */
const walkMs = 10 * 60_000

interface Dependencies {
  readonly database: Database
  readonly log: FastifyBaseLogger
  /** Monotonic milliseconds; tests give their own. */
  readonly now?: () => number
}

/**
 * The meter `ingress`: accepted public chats by agent and minute. Nothing is counted in memory; the runs themselves are,
 * so an interval whose flush failed is not dropped but counted by the next one.
 */
export interface Ingress {
  accepted(tenantId: string): void
  /** Counts the tenants that had chats lately, or all of them. */
  flush(): Promise<void>
  start(): void
  stop(): Promise<void>
}

export function createIngress({ database, log, now = () => performance.now() }: Dependencies): Ingress {
  const lately = new Map<string, number>()
  let walked = Number.NEGATIVE_INFINITY
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let flushing: Promise<void> | undefined

  const flush = async (): Promise<void> => {
    const at = now()
    const everybody = at - walked >= walkMs
    const failures: unknown[] = []
    const failed = (err: unknown): string[] => {
      failures.push(err)
      return []
    }
    const counted = (tenantId: string) => (): void => {
      if (at - (lately.get(tenantId) ?? at) >= quietMs) lately.delete(tenantId)
    }
    for (const tenantId of everybody ? await tenantIds(database).catch(failed) : [...lately.keys()]) {
      if (stopped) return
      await countIngress(database, tenantId).then(counted(tenantId), failed)
    }
    // Once for all tenants: when the database is away it is away for each of them.
    if (failures.length > 0) log.error({ err: failures[0], failures: failures.length }, 'ingress.flush_failed')
    else if (everybody) walked = at
  }
  const ingress: Ingress = {
    accepted: (tenantId) => void lately.set(tenantId, now()),
    flush: () =>
      (flushing ??= flush().finally(() => {
        flushing = undefined
      })),
    start() {
      timer = setInterval(() => void ingress.flush(), everyMs).unref()
    },
    async stop() {
      stopped = true
      clearInterval(timer)
      await flushing
    },
  }
  return ingress
}

// A minute is counted 5 s after it is over. A run that is committed later still is found by the overlap of the next count:
// no transaction of ours takes 5 minutes.
const count = {
  name: 'chat-ingress',
  text: `WITH before AS (SELECT counted_until FROM ingress_watermarks WHERE tenant_id = $1),
         closed AS (
           INSERT INTO ingress_watermarks AS mark (tenant_id, counted_until)
           VALUES ($1, date_trunc('minute', now() - interval '5 seconds'))
           ON CONFLICT (tenant_id) DO UPDATE SET counted_until = EXCLUDED.counted_until
             WHERE mark.counted_until < EXCLUDED.counted_until
           RETURNING counted_until)
         INSERT INTO usage_meters AS meter (tenant_id, meter, subject, minute, amount, recorded_at)
         SELECT $1, 'ingress', run.published_id, date_trunc('minute', run.created_at), count(*),
           date_trunc('minute', run.created_at)
         FROM closed, public_runs run
         WHERE run.tenant_id = $1 AND run.created_at < closed.counted_until
           AND run.created_at >= coalesce((SELECT counted_until FROM before), '-infinity') - interval '5 minutes'
         GROUP BY run.published_id, date_trunc('minute', run.created_at)
         ON CONFLICT (tenant_id, meter, subject, minute) DO UPDATE SET amount = EXCLUDED.amount
           WHERE meter.amount <> EXCLUDED.amount`,
}

/**
 * Counts a tenant's accepted chats of the minutes that are over since the last count, and a few before. The amount of a
 * minute is set, never added to, so that a count repeated after a crash changes nothing; of several gateways that count at
 * once one does, behind the lock on the watermark.
 */
const countIngress = (database: Database, tenantId: string): Promise<unknown> =>
  database.batch(tenantId, [{ ...count, values: [tenantId] }])
