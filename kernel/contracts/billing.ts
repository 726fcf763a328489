import type { StaticDecode, TObject } from '@sinclair/typebox'
import { capability, definePlugin, type Plugin, type PluginContext, slot } from '../plugin.ts'
import { type AppError, errorTable } from './errors.ts'

/** The route by which a tenant buys credit. Specification 4.8. */
export const checkoutPath = '/api/billing/checkout'

export const billingErrors = errorTable('billing', {
  registrationPending: {
    status: 402,
    message: 'This tenant is not registered for billing yet: its admins can buy credit at POST /api/billing/checkout.',
    about: 'The tenant has never had credit. With `checkout_path`.',
  },
  creditsExhausted: {
    status: 402,
    message: 'The credit of this tenant is used up, or held for runs that have not ended.',
    about: 'The credit of the tenant is used up, or held for runs that have not ended. With `checkout_path`.',
  },
  billingUnavailable: {
    status: 402,
    retry: 'later',
    message: 'The credit of this tenant cannot be checked now; try again.',
    about: 'The credit of the tenant cannot be checked now. With `checkout_path`.',
  },
  modelUnpriced: {
    status: 409,
    about: 'The model of the profile has no price, and this server refuses such models (`refuseUnpriced`).',
  },
  budgetExceeded: {
    status: 402,
    about: 'A budget of the tenant is used up; `budget` says which. Its admins can raise it: PUT /api/billing/budgets.',
  },
  unknownPack: { status: 400, about: '`cents` is not one of the packs of GET /api/billing/wallet.' },
  invalidEvent: {
    status: 400,
    message: 'The body is not an event of the provider, or it is not signed with its secret.',
  },
  providerFailed: { status: 502, retry: 'later', message: 'The billing provider does not answer; try again.' },
  billingNotConfigured: {
    status: 503,
    message: 'This server has no billing; AGENT_ORC_BILLING chooses a provider.',
  },
})

/** The sentence of a server that refuses models without a price. */
export const unpricedModel = (model: string): string =>
  `The model '${model}' has no price on this server, which refuses such models: name another one in the profile, or have its operator add a price.`

/** Why a run cannot start. */
export const fundsErrors = [
  billingErrors.registrationPending,
  billingErrors.creditsExhausted,
  billingErrors.billingUnavailable,
  billingErrors.budgetExceeded,
  billingErrors.modelUnpriced,
] as const

/** An exhausted budget. Amounts are in microcents. */
export interface BudgetRefusal {
  readonly id: string
  readonly scope: string
  readonly subject: string
  readonly per: string
  readonly cap: number
}

/** A budget with its use, as `/api/usage` shows it. */
export interface BudgetAlert {
  readonly budgetId: string
  readonly scope: string
  /** The profile, key, end user or session. Empty for the tenant. */
  readonly subject: string
  readonly per: string
  readonly percent: number
  readonly spentCents: number
  readonly capCents: number
}

/**
 * Prepaid credit. The statements that start and end runs move the money, with the functions of migrations 55 and 67. This interface is everything
 * else that they need.
 */
export interface Billing {
  /** Set when no provider is configured: nothing is held, and every run is allowed. */
  readonly absent?: true
  /** Microcents that are held when a run starts, if its credit and limits allow it. */
  readonly holdMicrocents: number
  /** The credit that must remain for a run to start, and to continue after a model call. */
  readonly reserveMicrocents: number
  /** True: a model without a price is refused at the start, and after a call of it. */
  readonly refusesUnpriced: boolean
  /** Throws 409 `model_unpriced` for a model that this server refuses. */
  checkModel(model: string): void
  /** Rejects with 402 for a tenant that is not registered or has no free credit. */
  gate(tenantId: string): Promise<void>
  /** The 402 for a statement that the ledger refused; undefined for any other failure. */
  refusalOf(error: unknown): AppError | undefined
  /**
   * Raises the hold of a run to what it has spent so far, in microcents, plus some reserve. Resolves to the held amount, or to the 402 when there
   * is no credit left.
   */
  extend(tenantId: string, runId: string, spent: number): Promise<number | AppError>
  /** The budgets of a tenant that are used by 80 % or more, the fullest first, at most 100. */
  alerts(tenantId: string): Promise<readonly BudgetAlert[]>
}
export const Billing = capability<Billing>('conductor.billing')

/** Billing. Undefined in a role without it, whether the role declares that or does not list billing. */
export const presentBilling = (billing: Billing | undefined): Billing | undefined =>
  billing?.absent ? undefined : billing

/** A requested payment. */
export interface Checkout {
  readonly id: string
  readonly tenantId: string
  readonly cents: number
  readonly currency: string
  readonly label: string
  /** The provider's id for the price of the pack. Undefined: the catalog has none. */
  readonly price: string | undefined
  /** The provider's id for the tenant. Undefined until it is known. */
  readonly customer: string | undefined
  /** The URL of this server, to which the payment page returns. */
  readonly origin: string
}

/** An event of a provider, with the provider's reference. A repeated reference is the same event. */
export type BillingEvent =
  | {
      readonly kind: 'paid'
      readonly tenantId: string
      readonly checkoutId: string
      readonly cents: number
      readonly reference: string
    }
  | { readonly kind: 'expired'; readonly tenantId: string; readonly checkoutId: string }
  /** `cents`: the total refunded of the payment so far. */
  | (PartOfPayment & { readonly kind: 'refunded' })
  /** A payment is disputed and its money was withdrawn; `won`: the money came back. Either may arrive first. */
  | (PartOfPayment & { readonly kind: 'disputed'; readonly won: boolean })

/** A part of a checkout's payment. With taxes or a rebate, `of` (the whole payment) differs from the credit that was bought. */
interface PartOfPayment {
  readonly tenantId: string
  readonly checkoutId: string
  readonly cents: number
  readonly of: number
  readonly reference: string
}

/** Takes payments. */
export interface BillingProvider {
  /** Makes a payment page. Rejects with 502 `provider_failed` when the provider fails. */
  checkout(of: Checkout): Promise<{ readonly url: string; readonly customer?: string }>
  /** The provider's page on which a customer sees its payments. Absent: there is none. */
  portal?(customer: string, returnUrl: string): Promise<string>
  /** Reads a delivery. Undefined: it does not concern money. Rejects with 400 `invalid_event` if the provider did not sign it. */
  read?(
    body: Buffer,
    headers: Readonly<Record<string, string | string[] | undefined>>,
  ): Promise<BillingEvent | undefined>
  /** Set when an operator confirms payments at this server. */
  readonly manual?: true
  /** Rejects when the provider refuses its settings. Resolves when the provider cannot be reached. Called before the role starts. */
  verify?(): Promise<void>
}
export const BillingProviders = slot<BillingProvider>('billing.provider')

interface Provider<C extends TObject> {
  readonly name: string
  readonly config?: C
  /** Undefined when the settings leave the provider out. */
  create(ctx: PluginContext<StaticDecode<C>, Record<never, never>>): Promise<BillingProvider | undefined>
}

/** A plugin that takes payments, in the slot under its name. */
export const defineBillingProvider = <C extends TObject>({ name, config, create }: Provider<C>): Plugin =>
  definePlugin({
    name: `billing-${name}`,
    ...(config ? { config } : {}),
    errors: billingErrors,
    provides: { providers: BillingProviders },
    async setup(ctx) {
      const provider = await create(ctx as Parameters<typeof create>[0])
      return { providers: provider ? { [name]: provider } : {} }
    },
  })
