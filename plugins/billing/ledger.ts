import type { Database, Statement as Sql, TenantTx } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { Listing, Page } from '#contracts/paging'
import { microcentsPerCent } from '#contracts/prices'
import { readList } from '#kit/lists'
import type { CheckoutView, LedgerEntry, Statement } from './schema.ts'

/** A tenant's credit, in microcents. Expired credit is not counted, even before it is written off. */
export interface Account {
  readonly balance: number
  readonly held: number
  readonly customers: Readonly<Record<string, string>>
}
export interface CreditLeft {
  readonly kind: string
  readonly remaining: number
  readonly priority: number
  readonly expiresAt: string | null
}
/** Credit that the tenant receives. */
export interface Credit {
  readonly cents: number
  readonly kind: 'topup' | 'grant' | 'correction' | 'dispute_won'
  readonly reference: string
  readonly priority?: number
  readonly expiresAt?: string
  readonly note?: string
}
/** Credit that the tenant loses. */
export interface Debit {
  readonly cents: number
  readonly kind: 'refund' | 'correction' | 'dispute'
  readonly reference: string
  readonly note?: string
}

const counters = {
  topup: 'payments',
  grant: 'grants',
  refund: 'payments',
  dispute: 'payments',
  dispute_won: 'payments',
  correction: 'adjustments',
} as const
export const microcents = (cents: number): number => Math.round(cents * microcentsPerCent)

const account = (tenantId: string): Sql => ({
  name: 'billing-account',
  text: `SELECT balance::float8 - coalesce((
           SELECT sum(remaining) FROM billing_credits WHERE tenant_id = $1 AND remaining > 0 AND expires_at <= now()
         ), 0)::float8 AS balance, held::float8 AS held, customers
         FROM billing_accounts WHERE tenant_id = $1`,
  values: [tenantId],
})
const credits = (tenantId: string): Sql => ({
  name: 'billing-credits',
  text: `SELECT kind, remaining::float8 AS remaining, priority, expires_at AS "expiresAt" FROM billing_credits
         WHERE tenant_id = $1 AND remaining > 0 AND (expires_at IS NULL OR expires_at > now())
         ORDER BY priority, expires_at NULLS LAST, created_at, id LIMIT 100`,
  values: [tenantId],
})
const creditOf = (tenantId: string, { cents, kind, reference, priority = 100, expiresAt, note }: Credit): Sql => ({
  name: 'billing-credit',
  text: 'SELECT billing_credit($1, $2, $3, $4, $5, $6, $7, $8, $9) AS written',
  values: [tenantId, newId('cred'), microcents(cents), counters[kind], kind, reference, priority, expiresAt, note],
})
const debitOf = (tenantId: string, { cents, kind, reference, note }: Debit): Sql => ({
  name: 'billing-debit',
  text: 'SELECT billing_debit($1, $2, $3, $4, $5, $6) AS written',
  values: [tenantId, microcents(cents), counters[kind], kind, reference, note],
})
const register = (tenantId: string): Sql => ({
  text: 'INSERT INTO billing_accounts (tenant_id) VALUES ($1) ON CONFLICT DO NOTHING',
  values: [tenantId],
})
const checkoutColumns = `id, tenant_id AS "tenantId", provider, cents::float8 AS cents, state, created_at AS "createdAt", paid_at AS "paidAt"`

/** Reads and writes of the ledger, except those in the statements of runs. */
export class Ledger {
  readonly #database: Database

  constructor(database: Database) {
    this.#database = database
  }

  /** The tenant's credit in microcents; undefined for a tenant that has never had a wallet. */
  async account(tenantId: string): Promise<Account | undefined> {
    const [[row]] = await this.#database.batch<[Account[]]>(tenantId, [account(tenantId)])
    return row
  }
  async credits(tenantId: string): Promise<{ account: Account | undefined; credits: CreditLeft[] }> {
    const statements = [account(tenantId), credits(tenantId)]
    const [[found], left] = await this.#database.batch<[Account[], CreditLeft[]]>(tenantId, statements)
    return { account: found, credits: left }
  }
  async knows(tenantId: string): Promise<boolean> {
    const find = { text: 'SELECT 1 FROM tenants WHERE id = $1 AND deleted_at IS NULL', values: [tenantId] }
    const [rows] = await this.#database.systemBatch<[object[]]>([find])
    return rows.length > 0
  }
  /** Gives credit at most once for each reference. Resolves to false if the credit was given before. */
  async credit(tenantId: string, credit: Credit, also: readonly Sql[] = []): Promise<boolean> {
    const [[row]] = await this.#database.batch<[{ written: boolean }[]]>(tenantId, [
      creditOf(tenantId, credit),
      ...also,
    ])
    return row!.written
  }
  /** Takes credit back at most once for each reference. Resolves to false if the credit was taken before. */
  async debit(tenantId: string, debit: Debit): Promise<boolean> {
    const [[row]] = await this.#database.batch<[{ written: boolean }[]]>(tenantId, [debitOf(tenantId, debit)])
    return row!.written
  }
  /**
   * Takes back credit of one payment until `total` microcents are taken back. Refund events may arrive in any order, so each event states the
   * total.
   */
  async refund(tenantId: string, total: number, payment: string): Promise<void> {
    await this.#database.tenant(tenantId, async (tx: TenantTx) => {
      await tx.query(register(tenantId))
      await tx.query({ text: 'SELECT 1 FROM billing_accounts WHERE tenant_id = $1 FOR UPDATE', values: [tenantId] })
      const [row] = await tx.query<{ sum: number }>({
        text: `SELECT coalesce(-sum(amount), 0)::float8 AS sum FROM ledger_entries
               WHERE tenant_id = $1 AND kind = 'refund' AND account = 'credit' AND starts_with(reference, $2)`,
        values: [tenantId, `${payment}:`],
      })
      const cents = (total - row!.sum) / microcentsPerCent
      if (cents > 0) await tx.query(debitOf(tenantId, { cents, kind: 'refund', reference: `${payment}:${total}` }))
    })
  }
  /**
   * Takes disputed credit, and gives it back when the tenant wins the dispute. Events may repeat or arrive in any order: a won dispute first takes
   * the credit if it was not taken yet. Resolves to true if the ledger changed.
   */
  async dispute(tenantId: string, cents: number, reference: string, won: boolean): Promise<boolean> {
    const taken = debitOf(tenantId, { cents, kind: 'dispute', reference })
    const given = creditOf(tenantId, { cents, kind: 'dispute_won', reference })
    const rows = await this.#database.batch<{ written: boolean }[][]>(tenantId, won ? [taken, given] : [taken])
    return rows.some(([row]) => row!.written)
  }
  /** Extends the hold of a run. Resolves to the microcents held, or null for a run without a hold. Rejects with the database function's refusal. */
  async extend(
    tenantId: string,
    runId: string,
    spent: number,
    { more, least }: { readonly more: number; readonly least: number },
  ): Promise<number | null> {
    const [row] = await this.#database.as('claims').unit<{ held: number | null }>(
      tenantId,
      {
        name: 'billing-extend',
        text: 'SELECT billing_extend($1, $2, $3, $4, $5)::float8 AS held',
        values: [tenantId, runId, spent, more, least],
      },
      { order: `billing ${tenantId}` },
    )
    return row!.held
  }

  /** Stores a requested payment. This also registers the tenant's account. */
  async openCheckout(
    tenantId: string,
    of: { id: string; provider: string; cents: number; createdBy: string },
  ): Promise<void> {
    await this.#database.batch(tenantId, [
      register(tenantId),
      {
        text: 'INSERT INTO billing_checkouts (tenant_id, id, provider, cents, created_by) VALUES ($1, $2, $3, $4, $5)',
        values: [tenantId, of.id, of.provider, of.cents, of.createdBy],
      },
    ])
  }
  async keepCustomer(tenantId: string, provider: string, customer: string): Promise<void> {
    await this.#database.batch(tenantId, [
      {
        text: 'UPDATE billing_accounts SET customers = customers || jsonb_build_object($2::text, $3::text) WHERE tenant_id = $1',
        values: [tenantId, provider, customer],
      },
    ])
  }
  async checkout(tenantId: string, id: string): Promise<CheckoutView | undefined> {
    const find = {
      text: `SELECT ${checkoutColumns} FROM billing_checkouts WHERE tenant_id = $1 AND id = $2`,
      values: [tenantId, id],
    }
    const [[row]] = await this.#database.batch<[CheckoutView[]]>(tenantId, [find])
    return row
  }
  /** Credits a received payment at most once for each reference. Resolves to false if the payment was credited before. */
  paid(
    tenantId: string,
    checkoutId: string,
    { cents, reference }: Pick<Credit, 'cents' | 'reference'>,
  ): Promise<boolean> {
    const close = {
      text: `UPDATE billing_checkouts SET state = 'paid', paid_at = coalesce(paid_at, now()) WHERE tenant_id = $1 AND id = $2`,
      values: [tenantId, checkoutId],
    }
    return this.credit(tenantId, { cents, kind: 'topup', reference }, [close])
  }
  async expireCheckout(tenantId: string, checkoutId: string): Promise<void> {
    const expire = {
      text: `UPDATE billing_checkouts SET state = 'expired' WHERE tenant_id = $1 AND id = $2 AND state = 'open'`,
      values: [tenantId, checkoutId],
    }
    await this.#database.batch(tenantId, [expire])
  }

  /** The entries of a tenant's ledger, newest first. */
  entries(
    tenantId: string,
    { account: of, kind, runId, ...page }: Page & { account?: string; kind?: string; runId?: string },
  ): Promise<Listing<LedgerEntry>> {
    return readList<LedgerEntry, LedgerEntry>(
      { database: this.#database, tenantId },
      {
        columns: `id, created_at AS at, account, (amount / ${microcentsPerCent}.0)::float8 AS "amountCents", kind, reference,
          run_id AS "runId", profile, note, prices, unpriced`,
        from: 'ledger_entries',
        where: `tenant_id = $1 AND ($2::text IS NULL OR account = $2) AND ($3::text IS NULL OR kind = $3)
          AND ($4::text IS NULL OR run_id = $4)`,
        values: [tenantId, of ?? null, kind ?? null, runId ?? null],
        order: { created_at: 'timestamptz', id: 'bigint' },
        newestFirst: true,
        atOnce: 200,
      },
      page,
      (row) => row,
    )
  }

  /** The changes of a tenant's credit in a month of UTC. */
  async statement(tenantId: string, month: string): Promise<Statement> {
    const from = `${month}-01`
    const between = `created_at >= ($2::date)::timestamp AT TIME ZONE 'UTC'
      AND created_at < ($2::date + interval '1 month')::timestamp AT TIME ZONE 'UTC'`
    const ofMonth = `tenant_id = $1 AND account = 'credit' AND ${between}`
    const values = [tenantId, from]
    const cents = (sum: string): string => `(coalesce(${sum}, 0) / ${microcentsPerCent}.0)::float8`
    const [[opening], kinds, byProfile] = await this.#database
      .as('figures')
      .batch<[{ cents: number; final: boolean }[], { kind: string; cents: number }[], Statement['byProfile']]>(
        tenantId,
        [
          {
            text: `SELECT ${cents('sum(amount)')} AS cents, now() AT TIME ZONE 'UTC' >= $2::date + interval '1 month 1 minute' AS final
                 FROM ledger_entries
                 WHERE tenant_id = $1 AND account = 'credit' AND created_at < ($2::date)::timestamp AT TIME ZONE 'UTC'`,
            values,
          },
          {
            text: `SELECT kind, ${cents('sum(amount)')} AS cents FROM ledger_entries WHERE ${ofMonth} GROUP BY 1 ORDER BY 1`,
            values,
          },
          {
            text: `SELECT profile, count(DISTINCT run_id)::int AS runs, ${cents('-sum(amount)')} AS "chargedCents",
                   count(DISTINCT run_id) FILTER (WHERE unpriced)::int AS "unpricedRuns"
                 FROM ledger_entries WHERE ${ofMonth} AND run_id IS NOT NULL GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT 1000`,
            values,
          },
        ],
      )
    const change = kinds.reduce((sum, one) => sum + microcents(one.cents), 0)
    return {
      month,
      openingCents: opening!.cents,
      closingCents: (microcents(opening!.cents) + change) / microcentsPerCent,
      byKind: Object.fromEntries(kinds.map((one) => [one.kind, one.cents])),
      byProfile,
      final: opening!.final,
    }
  }
}
