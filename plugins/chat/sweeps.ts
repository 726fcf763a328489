import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { endings, publicMessageOf } from '#contracts/endings'
import { Sweep, tenantIds } from '#kit'

interface TenantTask {
  readonly everyMs: number
  /** Milliseconds after an event in a tenant during which every sweep includes the tenant. */
  readonly lingerMs: number
  /** Milliseconds between sweeps of all tenants. */
  readonly fullSweepMs: number
  sweep(tenantId: string): Promise<unknown>
  /** Called after each sweep. `all`: the sweep included every tenant. */
  onSwept(all: boolean, failures: readonly unknown[]): void
}

/**
 * Runs a task tenant by tenant, because row security hides rows from a statement without a tenant. Tenants with recent events are swept every time.
 * All tenants are swept now and then, for what other processes left behind.
 */
function createTenantSweep(database: Database, task: TenantTask, now = (): number => performance.now()) {
  const { everyMs, lingerMs, fullSweepMs, sweep, onSwept } = task
  /** Tenants in which something happened since the last sweep. */
  const touched = new Set<string>()
  const lately = new Map<string, number>()
  let fullySwept = Number.NEGATIVE_INFINITY
  let turnedAt = now()
  let stopped = false

  const sweepDue = async (): Promise<void> => {
    const at = now()
    for (const tenantId of touched) lately.set(tenantId, turnedAt)
    touched.clear()
    turnedAt = at
    const everybody = at - fullySwept >= fullSweepMs
    const failures: unknown[] = []
    const failed = (err: unknown): void => void failures.push(err)
    const due = everybody ? await Array.fromAsync(tenantIds(database, 'stored')).catch(failed) : [...lately.keys()]
    for (const tenantId of due ?? []) {
      if (stopped) return
      const rest = (): void => {
        if (at - (lately.get(tenantId) ?? at) >= lingerMs) lately.delete(tenantId)
      }
      await sweep(tenantId).then(rest, failed)
    }
    if (everybody && failures.length === 0) fullySwept = at
    onSwept(everybody, failures)
  }
  const turns = new Sweep(everyMs, sweepDue, (err) => onSwept(false, [err]))
  return {
    touched,
    /** Sweeps the tenants that are due, one after the other. Never rejects; a tenant that failed is swept again. */
    turn: () => turns.now(),
    start: () => turns.start(),
    stop(): Promise<void> {
      stopped = true
      return turns.stop()
    },
  }
}

/** How many rows one statement ends. */
const sweptAtOnce = 200

// A start that comes after this finds its public run `lost` and is refused. An ended run whose public run is open was begun by an earlier release,
// whose gateway died before it could write the end.
const end = {
  name: 'chat-sweep',
  text: `WITH orphan AS (
           SELECT chat.id, run.session_id, run.result, run.error_code,
             CASE WHEN run.id IS NULL THEN 'lost' WHEN run.status = 'ok' THEN 'ok' ELSE 'error' END AS status,
             CASE WHEN run.id IS NULL THEN $2 WHEN run.status = 'ok' THEN coalesce(run.result, '')
               ELSE coalesce($4::json ->> run.error_code, $3) END AS told
           FROM public_runs chat LEFT JOIN runs run ON run.tenant_id = $1 AND run.id = chat.run_id
           WHERE chat.tenant_id = $1 AND chat.status IN ('dispatching', 'running')
             AND (run.finished_at IS NOT NULL OR
               (run.id IS NULL AND chat.status = 'dispatching' AND chat.created_at < now() - interval '30 seconds'))
           ORDER BY chat.id LIMIT ${sweptAtOnce} FOR UPDATE OF chat SKIP LOCKED),
         ended AS (
           UPDATE public_runs chat
           SET status = orphan.status, finished_at = now(),
             error_code = CASE orphan.status WHEN 'ok' THEN NULL WHEN 'lost' THEN 'lost' ELSE orphan.error_code END,
             error_message = CASE orphan.status WHEN 'ok' THEN NULL ELSE orphan.told END
           FROM orphan WHERE chat.tenant_id = $1 AND chat.id = orphan.id AND chat.finished_at IS NULL
           RETURNING chat.id, chat.conversation_id, chat.status, orphan.told, orphan.session_id),
         message AS (
           INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, failed)
           SELECT $1, conversation_id, id, 'assistant', told, status <> 'ok' FROM ended
           ON CONFLICT DO NOTHING),
         conversation AS (
           UPDATE conversations SET session_id = coalesce(ended.session_id, conversations.session_id), updated_at = now()
           FROM ended WHERE conversations.tenant_id = $1 AND conversations.id = ended.conversation_id)
         SELECT status FROM ended`,
}
const lostMessage = 'The run was lost in a restart. Send the message again.'
const toldByCode = JSON.stringify(Object.fromEntries(Object.keys(endings).map((code) => [code, publicMessageOf(code)])))

/**
 * Ends open public runs that nobody else will end. A run in doubt that was never started becomes `lost`. Call `touch` for a tenant with a run in
 * doubt.
 */
export function createSweep(database: Database, log: FastifyBaseLogger) {
  let counts = { swept: 0, finished: 0, lost: 0 }
  let isBoot = true
  return createTenantSweep(database, {
    everyMs: 5_000,
    // Milliseconds after which a run in doubt has ended, or was never started.
    lingerMs: 60_000,
    fullSweepMs: 30_000,
    async sweep(tenantId) {
      const values = [tenantId, lostMessage, publicMessageOf(''), toldByCode]
      for (let more = true; more;) {
        const [ended] = await database.batch<[{ status: 'lost' | 'ok' | 'error' }[]]>(tenantId, [{ ...end, values }])
        for (const { status } of ended) counts[status === 'lost' ? 'lost' : 'finished']++
        counts.swept += ended.length
        more = ended.length === sweptAtOnce
      }
    },
    onSwept(everybody, [err]) {
      if (err !== undefined) log.warn({ err }, 'the sweep of lost runs failed; it is tried again')
      const isFirst = isBoot && everybody && err === undefined
      if (isFirst) isBoot = false
      if (counts.swept === 0 && !isFirst) return
      log.info(counts, 'crash.recovery.sweep')
      counts = { swept: 0, finished: 0, lost: 0 }
    },
  })
}

// A minute is counted 5 s after it is over. The next count overlaps and finds runs that were committed later, because none of our transactions
// takes 5 minutes.
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
 * The meter `ingress`: accepted public chats per agent and minute. It counts the stored runs, not requests in memory, so that a failed count, or
 * runs of a gateway that has died since, are counted later. The amount of a minute is set, never added to, so a repeated count changes nothing.
 * When several gateways count at once, the lock on the watermark lets one of them do it.
 */
export const createIngress = (database: Database, log: FastifyBaseLogger, now?: () => number) =>
  createTenantSweep(
    database,
    {
      everyMs: 30_000,
      // Milliseconds: long enough for the minute of a chat to be over, and for late commits to be visible.
      lingerMs: 3 * 60_000,
      fullSweepMs: 10 * 60_000,
      sweep: (tenantId) => database.batch(tenantId, [{ ...count, values: [tenantId] }]),
      // Log one line for all tenants: when the database is away, every tenant fails in the same way.
      onSwept(_everybody, [err, ...more]) {
        if (err !== undefined) log.error({ err, failures: more.length + 1 }, 'ingress.flush_failed')
      },
    },
    now,
  )
