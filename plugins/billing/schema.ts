import { type Static, Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'

const Time = Type.String({ format: 'date-time' })
const Cents = Type.Number({ description: 'To the millionth of a cent.' })
// PostgreSQL text holds no NUL.
const pattern = '^[^\\u0000]*$'
const Note = Type.String({ minLength: 1, maxLength: 500, pattern })
const TenantId = Type.String({ minLength: 1, maxLength: 128, pattern })
/** The smallest amount: a millionth of a cent. */
const leastCents = 0.000001
/** The most cents of one grant or payment. */
const mostCents = 1_000_000_000

export const Pack = Type.Object(
  {
    cents: Type.Integer({ minimum: 1, maximum: mostCents }),
    label: Type.String({ minLength: 1, maxLength: 100 }),
    price: Type.Optional(
      Type.String({
        pattern: '^[A-Za-z0-9_-]{1,100}$',
        description:
          'Id of the price of this pack in the catalog of the provider (Stripe: `price_…`), for its taxes and invoices; its amount must be `cents`.',
      }),
    ),
  },
  { additionalProperties: false },
)
export type Pack = Static<typeof Pack>

export const WalletView = Type.Object({
  registered: Type.Boolean({ description: 'The tenant has had credit, or has asked for it.' }),
  balanceCents: Cents,
  heldCents: Type.Number({ description: 'The part that is held for runs that have not ended.' }),
  currency: Type.String(),
  packs: Type.Array(Pack),
  credits: Type.Array(
    Type.Object({
      kind: Type.String(),
      remainingCents: Cents,
      priority: Type.Integer({ description: 'Lower ones are spent first.' }),
      expiresAt: Type.Union([Time, Type.Null()]),
    }),
    { description: 'The parts of the balance, in the order in which they are spent; the first 100.' },
  ),
})
export type WalletView = Static<typeof WalletView>

export const CheckoutBody = Type.Object(
  { cents: Type.Integer({ description: 'One of the packs of the wallet.' }) },
  { additionalProperties: false },
)
export const Link = Type.Object({ url: Type.String() })

export const CheckoutParams = Type.Object({ tenantId: Type.String(), id: Type.String() })
export const CheckoutView = Type.Object({
  id: Type.String(),
  tenantId: Type.String(),
  provider: Type.String(),
  cents: Type.Integer(),
  state: Type.Union(['open', 'paid', 'expired'].map((state) => Type.Literal(state))),
  createdAt: Time,
  paidAt: Type.Union([Time, Type.Null()]),
})
export type CheckoutView = Static<typeof CheckoutView>

const Reference = Type.String({
  pattern: '^[A-Za-z0-9_.:-]{1,100}$',
  description: 'Your own reference. A repeated one gets the first answer, and nothing is written twice.',
})

export const GrantBody = Type.Object(
  {
    tenantId: TenantId,
    cents: Type.Number({ minimum: leastCents, maximum: mostCents, description: 'To the millionth of a cent.' }),
    expiresAt: Type.Optional(Time),
    priority: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 1_000,
        default: 50,
        description: 'Credit with a lower priority is spent first; paid credit has 100.',
      }),
    ),
    reason: Type.Optional(Note),
    reference: Type.Optional(Reference),
  },
  { additionalProperties: false },
)
export type GrantBody = Static<typeof GrantBody>

export const CorrectionBody = Type.Object(
  {
    tenantId: TenantId,
    cents: Type.Number({ minimum: -mostCents, maximum: mostCents, description: 'Above 0 gives, below 0 takes.' }),
    kind: Type.Optional(
      Type.Union([Type.Literal('correction'), Type.Literal('refund')], {
        default: 'correction',
        description: '`refund`: credit that was paid back, so `cents` is below 0.',
      }),
    ),
    reason: Note,
    reference: Type.Optional(Reference),
  },
  { additionalProperties: false },
)
export type CorrectionBody = Static<typeof CorrectionBody>

export const Posted = Type.Object({
  reference: Type.String(),
  written: Type.Boolean({ description: 'False: an entry with this reference already existed.' }),
  balanceCents: Cents,
})

export const LedgerQuery = Type.Composite([
  PageQuery,
  Type.Object({
    account: Type.Optional(Type.String({ maxLength: 20, pattern, description: 'Only this account, e.g. `credit`.' })),
    kind: Type.Optional(Type.String({ maxLength: 20, pattern, description: 'Only such entries, e.g. `model`.' })),
    runId: Type.Optional(Type.String({ maxLength: 128, pattern })),
  }),
])
const orNull = Type.Union([Type.String(), Type.Null()])
export const LedgerEntry = Type.Object({
  id: Type.Integer(),
  at: Time,
  account: Type.String({
    description: "`credit` is the tenant's own account; the others are the opposite accounts.",
  }),
  amountCents: Cents,
  kind: Type.String({
    description:
      '`topup`, `grant`, `model`, `tool_calls`, `sandbox`, `storage`, `expiry`, `refund`, `dispute`, `dispute_won` or `correction`.',
  }),
  reference: Type.String({ description: 'Entries of one kind and reference add up to 0.' }),
  runId: orNull,
  profile: orNull,
  note: orNull,
  prices: Type.Union([Type.String(), Type.Null()], { description: 'The prices by which it was computed.' }),
  unpriced: Type.Boolean({ description: 'The price of a model of the run was not known: its calls were not charged.' }),
})
export type LedgerEntry = Static<typeof LedgerEntry>

export const MonthParams = Type.Object({
  month: Type.String({ pattern: '^20[0-9]{2}-(0[1-9]|1[0-2])$', description: 'A month of UTC, such as 2026-11.' }),
})
export const Statement = Type.Object({
  month: Type.String(),
  currency: Type.Optional(Type.String()),
  openingCents: Cents,
  closingCents: Cents,
  byKind: Type.Record(Type.String(), Cents, {
    description: 'The change by each kind of entry; together they lead from opening to closing.',
  }),
  byProfile: Type.Array(
    Type.Object({ profile: Type.String(), runs: Type.Integer(), chargedCents: Cents, unpricedRuns: Type.Integer() }),
    { description: 'What runs were charged, highest first; at most 1,000.' },
  ),
  final: Type.Boolean({
    description: 'The month ended at least a minute ago, so entries that were being written at its end are included.',
  }),
})
export type Statement = Static<typeof Statement>

const scopes = ['tenant', 'profile', 'key', 'end_user', 'session'] as const
const periods = ['run', 'day', 'month'] as const
const scope = Type.Union(scopes.map((one) => Type.Literal(one)))
const per = Type.Union(
  periods.map((one) => Type.Literal(one)),
  {
    description: 'Days and months are those of UTC. `run`: each run with those that it delegates.',
  },
)

export const Budget = Type.Object(
  {
    scope,
    subject: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: 256,
        pattern,
        description:
          'Name of the profile, id of the published key, end user or session. `*` (default): each one by itself. Not of scope `tenant`.',
      }),
    ),
    per,
    capCents: Type.Number({ minimum: 0, maximum: mostCents }),
    webhookUrl: Type.Optional(
      Type.String({ maxLength: 2_000, pattern, description: 'Receives `budget.alert` at 80 and at 100 %.' }),
    ),
  },
  { additionalProperties: false },
)
export type Budget = Static<typeof Budget>
export const BudgetsBody = Type.Object(
  { budgets: Type.Array(Budget, { maxItems: 1_000 }) },
  { additionalProperties: false },
)
export const BudgetView = Type.Object({
  id: Type.String(),
  scope,
  subject: Type.String({ description: 'Empty for the tenant.' }),
  per,
  capCents: Cents,
  webhookUrl: orNull,
  uses: Type.Array(
    Type.Object({
      subject: Type.String(),
      runId: orNull,
      spentCents: Cents,
      heldCents: Cents,
      percent: Type.Integer({ description: 'Spent percentage of the cap.' }),
    }),
    { description: 'In the current period; the 20 with the highest use.' },
  ),
})
export type BudgetView = Static<typeof BudgetView>
export const BudgetsView = Type.Object({ budgets: Type.Array(BudgetView) })
