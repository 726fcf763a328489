import type { FastifyBaseLogger } from 'fastify'
import type { Gauge } from 'prom-client'
import type { Database, Statement } from '#contracts/database'
import type { Prices } from '#contracts/prices'
import { tenantIds } from '#kit'

// The statement that ends a run normally releases the run's hold. This statement releases holds whose run is gone or has ended without it.
const releaseAbandoned = (tenantId: string): Statement => ({
  text: `SELECT billing_release($1, h.run_id) FROM billing_holds h
         WHERE h.tenant_id = $1 AND h.created_at < now() - interval '5 minutes' AND NOT EXISTS (
           SELECT 1 FROM runs r WHERE r.tenant_id = $1 AND r.id = h.run_id AND r.finished_at IS NULL)`,
  values: [tenantId],
})
const expire = (tenantId: string): Statement => ({
  text: `SELECT billing_expire($1) FROM (SELECT 1 FROM billing_accounts WHERE tenant_id = $1 FOR UPDATE) locked`,
  values: [tenantId],
})
/** Uses that one transaction looks at. */
const usesAtOnce = 1_000
// Looks at the next uses in the order of their key. Deletes those of past periods without holds, so that an end user who chatted once leaves no row,
// and those of budgets that are gone. The tenant's row is locked, so that nothing goes any more when a legal hold was answered. What a run is writing
// is left for the next time: a run waits for its other uses meanwhile.
const forgetUses = (tenantId: string, after: Place): Statement => ({
  text: `WITH free AS MATERIALIZED (SELECT id FROM tenants WHERE id = $1 AND NOT legal_hold FOR SHARE),
         seen AS MATERIALIZED (
           SELECT budget_id, subject, run_id FROM billing_budget_uses
           WHERE EXISTS (SELECT FROM free) AND tenant_id = $1 AND (budget_id, subject, run_id) > ($2, $3, $4)
           ORDER BY budget_id, subject, run_id LIMIT ${usesAtOnce}
         ), due AS MATERIALIZED (
           SELECT d.* FROM seen CROSS JOIN LATERAL (
             SELECT budget_id, subject, run_id FROM billing_budget_uses u
             WHERE tenant_id = $1 AND budget_id = seen.budget_id AND subject = seen.subject AND run_id = seen.run_id
               AND (held = 0 AND period < (now() AT TIME ZONE 'UTC')::date - 40
                 OR EXISTS (SELECT FROM billing_former_budgets f WHERE f.tenant_id = $1 AND f.id = u.budget_id))
             FOR UPDATE SKIP LOCKED) d
         ), gone AS (
           DELETE FROM billing_budget_uses u USING due
           WHERE u.tenant_id = $1 AND u.budget_id = due.budget_id AND u.subject = due.subject AND u.run_id = due.run_id
         )
         SELECT ARRAY[budget_id, subject, run_id] AS place FROM seen ORDER BY budget_id DESC, subject DESC, run_id DESC LIMIT 1`,
  values: [tenantId, ...after],
})
type Place = readonly [budgetId: string, subject: string, runId: string]
// No use can be added any more to a budget that is gone.
const forgetBudgets = (tenantId: string): Statement => ({
  text: `DELETE FROM billing_former_budgets f WHERE f.tenant_id = $1 AND NOT EXISTS (
           SELECT FROM billing_budget_uses u WHERE u.tenant_id = $1 AND u.budget_id = f.id)`,
  values: [tenantId],
})
// Charges storage once for each day that has begun, by the bytes stored when this statement runs.
const chargeStorage = (tenantId: string, perGibDay: number, prices: string): Statement => ({
  text: `SELECT billing_debit($1, round(s.bytes * $2::numeric / 1073741824)::bigint, 'usage', 'storage',
           to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'), NULL, $3)
         FROM tenant_storage s JOIN billing_accounts a ON a.tenant_id = $1
         WHERE s.tenant_id = $1 AND s.bytes * $2::numeric / 1073741824 >= 1`,
  values: [tenantId, perGibDay, prices],
})

/** How far back the hourly check looks at single runs. Two days make up for a missed day; the command checks all runs. */
const lookedAtMs = 2 * 24 * 3_600_000

interface Upkeep {
  readonly database: Database
  readonly prices: Prices | undefined
  readonly signal: AbortSignal
  readonly log: FastifyBaseLogger
  /** The number of inconsistencies found, plus the checks that failed. */
  readonly audited: Gauge
}

/** Periodic work for every tenant. Each step is idempotent. A failure for one tenant is logged and does not stop the others. */
export async function upkeep({ database, prices, signal, log, audited }: Upkeep): Promise<void> {
  const perGibDay = prices?.services.storedGibDay ?? 0
  const storage = (id: string): Statement[] => (perGibDay > 0 ? [chargeStorage(id, perGibDay, prices!.version)] : [])
  let found = 0
  for await (const id of tenantIds(database.as('reads'), 'active')) {
    if (signal.aborted) return
    try {
      await database.batch(id, [expire(id), releaseAbandoned(id), ...storage(id)])
      await forget(database, id, signal)
      const wrong = await reconcile(database, id, new Date(Date.now() - lookedAtMs))
      found += wrong.length
      for (const one of wrong) log.error({ tenantId: id, ...one }, 'the ledger does not add up')
    } catch (err) {
      if (signal.aborted) return
      found++
      log.error({ err, tenantId: id }, 'the upkeep of the ledger failed')
    }
  }
  audited.set(found)
}

/** Deletes uses that count no more, in transactions of their own: no run waits for its tenant's account meanwhile. */
async function forget(database: Database, tenantId: string, signal: AbortSignal): Promise<void> {
  const reads = database.as('reads')
  for (let place: Place | undefined = ['', '', '']; place && !signal.aborted;) {
    const [[last]]: [{ place: Place }[]] = await reads.batch(tenantId, [forgetUses(tenantId, place)])
    place = last?.place
  }
  await reads.batch(tenantId, [forgetBudgets(tenantId)])
}

/** An inconsistency. Amounts in microcents. */
export interface Discrepancy {
  readonly check: string
  /** The id of the run, the reference of the transfer or the id of the budget. */
  readonly subject: string
  readonly expected: number
  readonly found: number
}

/** The most findings that are reported for each check. */
const most = 50
/** Reconciliation stops after this many findings. */
const mostInAll = 1_000

// The cost that a run states. For a run with unpriced calls, this is the cost of its priced calls.
const charged = `coalesce(r.usage ->> 'costCents', r.usage ->> 'knownCostCents')::numeric`

const metered = 'coalesce(m.cost_microcents, m.known_microcents)'

/** Checks of sums over the whole ledger. They share one snapshot, so a run that ends meanwhile is in all sums or in none. */
const sums: Readonly<Record<string, string>> = {
  'the balance is the sum of the ledger': `
    SELECT 'balance' AS subject, s.sum AS expected, coalesce(a.balance, 0) AS found
    FROM (SELECT coalesce(sum(amount), 0) AS sum FROM ledger_entries WHERE tenant_id = $1 AND account = 'credit') s
    LEFT JOIN billing_accounts a ON a.tenant_id = $1 WHERE s.sum <> coalesce(a.balance, 0)`,
  'credits that are left make up the balance': `
    SELECT 'credits' AS subject, greatest(a.balance, 0) AS expected, c.sum AS found
    FROM billing_accounts a, (SELECT coalesce(sum(remaining), 0) AS sum FROM billing_credits WHERE tenant_id = $1) c
    WHERE a.tenant_id = $1 AND c.sum <> greatest(a.balance, 0)`,
  'what is held is held for runs': `
    SELECT 'held' AS subject, h.sum AS expected, a.held AS found
    FROM billing_accounts a, (SELECT coalesce(sum(amount), 0) AS sum FROM billing_holds WHERE tenant_id = $1) h
    WHERE a.tenant_id = $1 AND h.sum <> a.held`,
  'every hold has a run that has not ended': `
    SELECT run_id AS subject, 0 AS expected, amount AS found FROM billing_holds h WHERE tenant_id = $1 AND NOT EXISTS (
      SELECT 1 FROM runs r WHERE r.tenant_id = $1 AND r.id = h.run_id AND r.finished_at IS NULL)`,
  'what is held of budgets is held for runs': `
    SELECT u.budget_id || ' ' || u.subject AS subject, coalesce(h.sum, 0) AS expected, u.held AS found FROM billing_budget_uses u
    LEFT JOIN (
      SELECT b ->> 0 AS id, b ->> 1 AS subject, b ->> 2 AS run, sum(amount) AS sum, sum(spent) AS spent
      FROM billing_holds, jsonb_array_elements(budgets) b WHERE tenant_id = $1 GROUP BY 1, 2, 3
    ) h ON h.id = u.budget_id AND h.subject = u.subject AND h.run = u.run_id
    WHERE u.tenant_id = $1 AND (u.held <> coalesce(h.sum, 0) OR u.running <> coalesce(h.spent, 0))
      AND EXISTS (SELECT FROM billing_budgets b WHERE b.tenant_id = $1 AND b.id = u.budget_id)`,
}

const within = 'e.created_at >= $2::timestamptz AND e.created_at < $3::timestamptz'
/**
 * Checks of single transfers and runs written from $2 to $3. A counterpart may be written outside that time, so each is looked up by key. A join
 * without table statistics would read whole tables instead.
 */
const singles: Readonly<Record<string, string>> = {
  'every transfer adds up to 0': `
    SELECT e.kind || ' ' || e.reference AS subject, 0 AS expected, e.amount + coalesce(o.amount, 0) AS found FROM ledger_entries e
    CROSS JOIN LATERAL (
      SELECT sum(amount) AS amount, count(*) AS n FROM ledger_entries
      WHERE tenant_id = $1 AND kind = e.kind AND reference = e.reference AND id <> e.id
    ) o WHERE e.tenant_id = $1 AND ${within} AND (o.n <> 1 OR o.amount <> -e.amount)`,
  // A run that ended before the tenant had an account was charged to nobody. Rows deleted by retention and old meters without a known cost have
  // nothing to compare. Run ids can be reused, so an entry must not be older than the metered run.
  'every run that was metered is charged what its meter says': `
    SELECT m.run_id AS subject, coalesce(${metered}, 0) AS expected, coalesce(-e.amount, 0) AS found
    FROM run_meters m JOIN billing_accounts a ON a.tenant_id = $1 AND m.recorded_at >= greatest(a.registered_at, $2::timestamptz) AND m.recorded_at < $3::timestamptz
    LEFT JOIN LATERAL (
      SELECT amount, unpriced FROM ledger_entries
      WHERE tenant_id = $1 AND kind = 'model' AND reference IN (m.run_id, billing_reference(m.run_id, m.started_at)) AND account = 'credit'
        AND created_at >= m.started_at LIMIT 1
    ) e ON true
    WHERE m.tenant_id = $1 AND (coalesce(-e.amount, 0) <> coalesce(${metered}, -e.amount, 0)
      OR (m.cost_microcents IS NULL) <> coalesce(e.unpriced, false))`,
  'every charge has a run that says the same': `
    SELECT e.reference AS subject, -e.amount AS expected, round(${charged} * 1000000) AS found
    FROM ledger_entries e
    CROSS JOIN LATERAL (SELECT usage FROM runs WHERE tenant_id = $1 AND id = e.run_id AND started_at <= e.created_at LIMIT 1) r
    WHERE e.tenant_id = $1 AND ${within} AND e.kind = 'model' AND e.account = 'credit'
      AND coalesce(round(${charged} * 1000000), 0) <> -e.amount`,
}

const told = (checks: Readonly<Record<string, string>>): string => {
  const all = Object.entries(checks).map(
    ([name, text]) => `(SELECT '${name}' AS check_name, c.* FROM (${text} LIMIT ${most}) c)`,
  )
  return `SELECT check_name AS "check", subject, expected::float8 AS expected, found::float8 AS found FROM (${all.join(' UNION ALL ')}) wrong`
}
const ofSums = told(sums)
const ofSingles = told(singles)
const oldest = `
  SELECT floor(1000 * extract(epoch FROM least(registered_at, (SELECT min(created_at) FROM ledger_entries WHERE tenant_id = $1))))::float8 AS ms
  FROM billing_accounts WHERE tenant_id = $1`

const day = 24 * 3_600_000

/**
 * Checks that a tenant's ledger, meters and runs agree to the microcent, and resolves to the inconsistencies. It reads one day at a time, so that
 * no statement takes long. `since` limits the checks of single runs and transfers; sums always cover everything.
 */
export async function reconcile(database: Database, tenantId: string, since?: Date): Promise<Discrepancy[]> {
  const reads = database.as('reads')
  const [found, [first]] = await reads.batch<[Discrepancy[], { ms: number }[]]>(tenantId, [
    { text: ofSums, values: [tenantId] },
    { text: oldest, values: [tenantId] },
  ])
  if (!first) return found
  const wrong = [...found]
  for (let from = Math.max(first.ms, since?.getTime() ?? 0); wrong.length < mostInAll; from += day) {
    const isLast = from + day > Date.now()
    const values = [tenantId, new Date(from), isLast ? 'infinity' : new Date(from + day)]
    const [some] = await reads.batch<[Discrepancy[]]>(tenantId, [{ text: ofSingles, values }])
    wrong.push(...some)
    if (isLast) break
  }
  return wrong
}
