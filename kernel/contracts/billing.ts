import type { StaticDecode, TObject } from '@sinclair/typebox'
import { capability, definePlugin, type Plugin, type PluginContext, slot } from '../plugin.ts'
import { type AppError, errorTable } from './errors.ts'

/** Where a tenant gets credit. Specification 4.8. */
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

/** Where a server refuses models without a price. */
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

/** A budget that is used up. Amounts are in microcents. */
export interface BudgetRefusal {
  readonly id: string
  readonly scope: string
  readonly subject: string
  readonly per: string
  readonly cap: number
}

/** A budget and its use, as `/api/usage` shows it. */
export interface BudgetAlert {
  readonly budgetId: string
  readonly scope: string
  /** The profile, key, end user or session; empty for the tenant. */
  readonly subject: string
  readonly per: string
  readonly percent: number
  readonly spentCents: number
  readonly capCents: number
}

/**
 * Prepaid credit. The money of runs is moved by the statements that start and end them, with the functions of migrations 55 and 67: this is what else
 * they need to know.
 */
export interface Billing {
  /** Set when no provider is configured: nothing is held, and everything is allowed. */
  readonly absent?: true
  /** How much is held for a run when it starts, where its credit and its limits allow it. */
  readonly holdMicrocents: number
  /** The credit that must remain for a run to start, and to continue after a model call. */
  readonly reserveMicrocents: number
  /** Models without a price are refused: at the start, and after a call of one. */
  readonly refusesUnpriced: boolean
  /** Throws 409 `model_unpriced` for a model that this server refuses. */
  checkModel(model: string): void
  /** Rejects with 402 for a tenant that is not registered or has no free credit. */
  gate(tenantId: string): Promise<void>
  /** The 402 for a statement that the ledger refused; undefined for any other failure. */
  refusalOf(error: unknown): AppError | undefined
  /**
   * Has as much held for a run as it has spent by now, and some more, in microcents. Resolves to how much is held, or to the 402 when
   * there is no more.
   */
  extend(tenantId: string, runId: string, spent: number): Promise<number | AppError>
  /** The budgets of a tenant that are used by 80 % or more, the fullest first, at most 100. */
  alerts(tenantId: string): Promise<readonly BudgetAlert[]>
}
export const Billing = capability<Billing>('conductor.billing')

/** Billing; undefined in a role without it, whether the role declares that or does not list it. */
export const presentBilling = (billing: Billing | undefined): Billing | undefined =>
  billing?.absent ? undefined : billing

/** A requested payment. */
export interface Checkout {
  readonly id: string
  readonly tenantId: string
  readonly cents: number
  readonly currency: string
  readonly label: string
  /** The provider's id of the pack's price, if its catalog has one. */
  readonly price: string | undefined
  /** The provider's id of the tenant, once it is known. */
  readonly customer: string | undefined
  /** The URL of this server, for the return from the payment page. */
  readonly origin: string
}

/** An event that a provider reports, with a reference of its own: a repeated reference is the same event. */
export type BillingEvent =
  | {
      readonly kind: 'paid'
      readonly tenantId: string
      readonly checkoutId: string
      readonly cents: number
      readonly reference: string
    }
  | { readonly kind: 'expired'; readonly tenantId: string; readonly checkoutId: string }
  /** `cents`: all that was refunded of the payment so far. */
  | (PartOfPayment & { readonly kind: 'refunded' })
  /** A payment is disputed and its money withdrawn; `won`: the money has come back. Either may arrive first. */
  | (PartOfPayment & { readonly kind: 'disputed'; readonly won: boolean })

/** A part of the payment of a checkout. With taxes or a rebate, `of` (the whole payment) differs from the credit that was bought. */
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
  /** A page of the provider where a customer sees its payments; absent: there is none. */
  portal?(customer: string, returnUrl: string): Promise<string>
  /** Reads a delivery. Undefined: it does not concern money. Rejects with 400 `invalid_event` if the provider did not sign it. */
  read?(
    body: Buffer,
    headers: Readonly<Record<string, string | string[] | undefined>>,
  ): Promise<BillingEvent | undefined>
  /** An operator confirms payments at this server. */
  readonly manual?: true
  /** Rejects when the provider refuses its settings; resolves when it cannot be reached. Called before the role starts. */
  verify?(): Promise<void>
}
export const BillingProviders = slot<BillingProvider>('billing.provider')

interface Provider<C extends TObject> {
  readonly name: string
  readonly config?: C
  /** Undefined when its settings leave it out. */
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
