import { invalidField } from '#kernel'
import type { BudgetAlert } from '#contracts/billing'
import type { Database, Statement } from '#contracts/database'
import { newId } from '#contracts/ids'
import { overLimit, type TenantLimits } from '#contracts/limits'
import { microcentsPerCent } from '#contracts/prices'
import type { Webhooks } from '#contracts/webhooks'
import { microcents } from './ledger.ts'
import type { Budget, BudgetView } from './schema.ts'

type BudgetRow = Omit<BudgetView, 'uses'>
interface UseRow {
  readonly id: string
  readonly subject: string
  readonly runId: string
  readonly spentCents: number
  readonly heldCents: number
  readonly percent: number
}

const cents = (column: string): string => `(${column} / ${microcentsPerCent}.0)::float8`
/**
 * SQL for the microcents that a budget has spent, from its use `u` and the budget `b`. A row of an earlier period no longer counts its `spent`. The
 * row still counts what runs under way have spent and hold.
 */
const spent = `(u.running + CASE WHEN b.per = 'run' OR u.period = billing_period(b.per) THEN u.spent ELSE 0 END)`
/**
 * SQL for whether a use is shown. The count of a budget per run is deleted with the run. No event marks the end of a workflow, so a workflow's
 * count is kept until the day after its last run.
 */
const shown = `(b.per <> 'run' OR u.held > 0 OR u.period >= billing_period('day') - 1)`
const percent = `least(floor(100.0 * ${spent} / greatest(b.cap, 1)), 2147483647)::int`
const subjectOf = ({ scope, subject }: Budget): string => (scope === 'tenant' ? '' : (subject ?? '*'))

const list = (tenantId: string): Statement[] => [
  {
    text: `SELECT id, scope, subject, per, ${cents('cap')} AS "capCents", webhook_url AS "webhookUrl" FROM billing_budgets
           WHERE tenant_id = $1 ORDER BY scope, subject, per`,
    values: [tenantId],
  },
  {
    text: `SELECT b.id, u.* FROM billing_budgets b CROSS JOIN LATERAL (
             SELECT u.subject, u.run_id AS "runId", ${cents(spent)} AS "spentCents", ${cents('(u.held - u.running)')} AS "heldCents",
               ${percent} AS percent
             FROM billing_budget_uses u WHERE u.tenant_id = $1 AND u.budget_id = b.id AND ${shown} AND (${spent} > 0 OR u.held > 0)
             ORDER BY ${spent} + u.held DESC, u.subject LIMIT 20
           ) u WHERE b.tenant_id = $1`,
    values: [tenantId],
  },
]
const keep = (tenantId: string, kept: readonly string[]): Statement => ({
  text: `DELETE FROM billing_budgets WHERE tenant_id = $1 AND scope || '/' || per || '/' || subject <> ALL ($2::text[])`,
  values: [tenantId, kept],
})
const put = (tenantId: string, budget: Budget): Statement => ({
  text: `INSERT INTO billing_budgets (tenant_id, id, scope, subject, per, cap, webhook_url) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (tenant_id, scope, subject, per) DO UPDATE SET cap = excluded.cap, webhook_url = excluded.webhook_url, updated_at = now()`,
  values: [
    tenantId,
    newId('bud'),
    budget.scope,
    subjectOf(budget),
    budget.per,
    microcents(budget.capCents),
    budget.webhookUrl ?? null,
  ],
})
const toUse = ({ subject, runId, spentCents, heldCents, percent: used }: UseRow): BudgetView['uses'][number] => ({
  subject,
  runId: runId === '' ? null : runId,
  spentCents,
  heldCents,
  percent: used,
})

/** Admins cap the cost of runs with budgets. This class stores the caps; the statements that start and end runs enforce them. */
export class Budgets {
  readonly #database: Database
  readonly #webhooks: Pick<Webhooks, 'check'> | undefined
  readonly #limits: Pick<TenantLimits, 'of'> | undefined

  /** Without `limits` a tenant may have any number of budgets. Without `webhooks` no alerts are sent. */
  constructor(
    database: Database,
    webhooks: Pick<Webhooks, 'check'> | undefined,
    limits: Pick<TenantLimits, 'of'> | undefined,
  ) {
    this.#database = database
    this.#webhooks = webhooks
    this.#limits = limits
  }

  async list(tenantId: string): Promise<BudgetView[]> {
    const [budgets, uses] = await this.#database.as('reads').batch<[BudgetRow[], UseRow[]]>(tenantId, list(tenantId))
    const of = Map.groupBy(uses, ({ id }) => id)
    return budgets.map((budget) => ({ ...budget, uses: (of.get(budget.id) ?? []).map(toUse) }))
  }
  /** Replaces all budgets of the tenant. A budget with an unchanged scope, period and subject keeps its spent amount. */
  async replace(tenantId: string, budgets: readonly Budget[]): Promise<BudgetView[]> {
    const most = this.#limits?.of(tenantId).budgets
    if (most !== undefined && budgets.length > most) throw overLimit('budgets', most)
    const keys = new Set<string>()
    for (const [i, budget] of budgets.entries()) {
      const { scope, subject, per, webhookUrl } = budget
      if (scope === 'tenant' && subject !== undefined)
        throw invalidField(`body/budgets/${i}/subject`, 'is not for the scope tenant')
      const key = `${scope}/${per}/${subjectOf(budget)}`
      if (keys.has(key))
        throw invalidField(`body/budgets/${i}`, 'is there twice: one for each scope, subject and period')
      keys.add(key)
      if (webhookUrl === undefined) continue
      if (!this.#webhooks) throw invalidField(`body/budgets/${i}/webhookUrl`, 'needs a server with webhooks')
      this.#webhooks.check(tenantId, webhookUrl)
    }
    await this.#database.batch(tenantId, [
      // Runs that begin or end lock the account, so they find either these budgets or the former ones. They wait meanwhile, so no use is touched here.
      { text: 'SELECT 1 FROM billing_accounts WHERE tenant_id = $1 FOR UPDATE', values: [tenantId] },
      keep(tenantId, [...keys]),
      ...budgets.map((budget) => put(tenantId, budget)),
    ])
    return this.list(tenantId)
  }
  async count(tenantId: string): Promise<number> {
    const count = { text: 'SELECT count(*)::int AS n FROM billing_budgets WHERE tenant_id = $1', values: [tenantId] }
    const [[row]] = await this.#database.batch<[{ n: number }[]]>(tenantId, [count])
    return row!.n
  }
  async alerts(tenantId: string): Promise<BudgetAlert[]> {
    const find: Statement = {
      text: `SELECT b.id AS "budgetId", b.scope, u.subject, b.per, ${percent} AS percent, ${cents(spent)} AS "spentCents",
               ${cents('b.cap')} AS "capCents"
             FROM billing_budget_uses u JOIN billing_budgets b ON b.tenant_id = $1 AND b.id = u.budget_id
             WHERE u.tenant_id = $1 AND ${shown} AND ${spent} * 5 >= b.cap * 4 AND ${spent} > 0 ORDER BY 5 DESC, 1, 3 LIMIT 100`,
      values: [tenantId],
    }
    const [rows] = await this.#database.as('reads').batch<[BudgetAlert[]]>(tenantId, [find])
    return rows
  }
}
