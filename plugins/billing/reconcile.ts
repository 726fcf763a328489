import type { Database, Statement } from '#contracts/database'

/** What does not fit together. Amounts in microcents. */
export interface Discrepancy {
  readonly check: string
  /** The run, reference or budget. */
  readonly subject: string
  readonly expected: number
  readonly found: number
}

/** The most that is told of each check. */
const most = 50

// Of a run with calls whose price is not known the cost of the others.
const charged = `coalesce(r.usage ->> 'costCents', r.usage ->> 'knownCostCents')::numeric`

const metered = 'coalesce(m.cost_microcents, m.known_microcents)'

const checks: Readonly<Record<string, string>> = {
  'every transfer adds up to 0': `
    SELECT kind || ' ' || reference AS subject, 0 AS expected, sum(amount) AS found FROM ledger_entries
    WHERE tenant_id = $1 GROUP BY kind, reference HAVING sum(amount) <> 0 OR count(*) <> 2`,
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
    WHERE u.tenant_id = $1 AND (u.held <> coalesce(h.sum, 0) OR u.running <> coalesce(h.spent, 0))`,
  // Runs that ended before the tenant had an account were charged to nobody. What retention has deleted is compared with nothing, and
  // so are meters that say nothing, from before they said what is known of such a cost.
  'every run that was metered is charged what its meter says': `
    SELECT m.run_id AS subject, coalesce(${metered}, 0) AS expected, coalesce(-e.amount, 0) AS found
    FROM run_meters m JOIN billing_accounts a ON a.tenant_id = $1 AND m.recorded_at >= a.registered_at
    LEFT JOIN ledger_entries e ON e.tenant_id = $1 AND e.kind = 'model' AND e.reference = m.run_id AND e.account = 'credit'
    WHERE m.tenant_id = $1 AND (coalesce(-e.amount, 0) <> coalesce(${metered}, -e.amount, 0)
      OR (m.cost_microcents IS NULL) <> coalesce(e.unpriced, false))`,
  'every charge has a run that says the same': `
    SELECT e.reference AS subject, -e.amount AS expected, round(${charged} * 1000000) AS found
    FROM ledger_entries e JOIN runs r ON r.tenant_id = $1 AND r.id = e.reference
    WHERE e.tenant_id = $1 AND e.kind = 'model' AND e.account = 'credit'
      AND coalesce(round(${charged} * 1000000), 0) <> -e.amount`,
}

// One statement: runs that end meanwhile are in all checks or in none.
const all = Object.entries(checks)
  .map(([name, text]) => `(SELECT '${name}' AS check_name, c.* FROM (${text} LIMIT ${most}) c)`)
  .join(' UNION ALL ')
const checksOf = (tenantId: string): Statement => ({
  text: `SELECT check_name AS "check", subject, expected::float8 AS expected, found::float8 AS found FROM (${all}) wrong`,
  values: [tenantId],
})

/** Proves that the ledger of a tenant, the meters and the runs say the same to the microcent. Resolves to what does not fit. */
export async function reconcile(database: Database, tenantId: string): Promise<Discrepancy[]> {
  const [found] = await database.as('reads').batch<[Discrepancy[]]>(tenantId, [checksOf(tenantId)])
  return found
}
