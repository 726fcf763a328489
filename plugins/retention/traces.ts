import type { Statement } from '#contracts/database'

/**
 * SQL: webhook messages that name the end user whose id is the second value of the statement. Messages about runs have no text, and go with their
 * runs; the others are found by that. Only a text with the id in it is parsed.
 */
const messages = `webhook_deliveries w WHERE w.tenant_id = $1 AND w.run_id IS NULL AND position(to_json($2::text)::text IN w.body) > 0
  AND (w.body::json #>> '{data,endUserId}' = $2
    OR (w.body::json #>> '{data,scope}' = 'end_user' AND w.body::json #>> '{data,subject}' = $2))`
/** SQL: what was spent for the end user of budgets that count for each of them, also of those that are gone. */
const theirUses = `(
    SELECT id, per, false AS former FROM billing_budgets WHERE tenant_id = $1 AND scope = 'end_user'
    UNION ALL SELECT id, per, true FROM billing_former_budgets WHERE tenant_id = $1 AND scope = 'end_user'
  ) b WHERE u.tenant_id = $1 AND b.id = u.budget_id AND u.subject = $2`

/** What names an end user outside of their runs and of the data of plugins, and may be all that is left of them. */
export const traces = {
  /** A row if there is any. */
  known: (tenantId, endUserId) => ({
    text: `SELECT 1 FROM billing_budget_uses u, ${theirUses} UNION ALL SELECT 1 FROM ${messages} LIMIT 1`,
    values: [tenantId, endUserId],
  }),
  /** The next webhook messages in the order of ids, for an export. */
  messages: (tenantId, endUserId, after = '', limit = 1) => ({
    text: `SELECT w.id, w.url, w.state, w.created_at AS "createdAt", w.body::json AS message FROM ${messages} AND w.id > $3 ORDER BY w.id LIMIT $4`,
    values: [tenantId, endUserId, after, limit],
  }),
  dropMessages: (tenantId, endUserId) => ({ text: `DELETE FROM ${messages}`, values: [tenantId, endUserId] }),
  /** There are as many as budgets that count for each end user, so few. */
  uses: (tenantId, endUserId) => ({
    text: `SELECT u.budget_id AS "budgetId", b.per, u.period::text, u.spent::float8 / 1000000 AS "spentCents" FROM billing_budget_uses u, ${theirUses}
           ORDER BY u.budget_id LIMIT 1000`,
    values: [tenantId, endUserId],
  }),
  dropUses: (tenantId, endUserId) => ({
    text: `DELETE FROM billing_budget_uses u USING ${theirUses} AND (u.held = 0 OR b.former)`,
    values: [tenantId, endUserId],
  }),
  /** A row if a run under way still holds a part of a budget, which is counted until the run ends. */
  heldUses: (tenantId, endUserId) => ({
    text: `SELECT 1 FROM billing_budget_uses u, ${theirUses} AND NOT b.former LIMIT 1`,
    values: [tenantId, endUserId],
  }),
} satisfies Readonly<Record<string, (tenantId: string, endUserId: string, after?: string, limit?: number) => Statement>>
