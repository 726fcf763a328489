import type { Counter } from 'prom-client'
import type { AppError } from '#kernel'
import { type Billing, billingErrors, type BudgetRefusal, checkoutPath, unpricedModel } from '#contracts/billing'
import { sqlState } from '#contracts/database'
import { microcentsPerCent, type Prices } from '#contracts/prices'
import type { Budgets } from './budgets.ts'
import type { Ledger } from './ledger.ts'

/** The error code that the functions of migrations 55 and 67 raise for a refusal. */
const refusedState = 'AO402'
/** The database lacks the table or function: no conductor of this release has migrated it yet. */
const notThere = ['42P01', '42883']

const detail = { checkout_path: checkoutPath }

interface HoldsDeps {
  readonly ledger: Ledger
  readonly budgets: Budgets
  readonly holdMicrocents: number
  readonly reserveMicrocents: number
  /** Undefined in a role without prices: models without a price may be used, and their calls are charged nothing. */
  readonly priced: Pick<Prices, 'priceOf'> | undefined
  readonly refused: Counter
}

/** The interface of billing for runs and publishing. */
export function createHolds({
  ledger,
  budgets,
  holdMicrocents,
  reserveMicrocents,
  priced,
  refused,
}: HoldsDeps): Billing {
  const counted = (error: AppError): AppError => {
    refused.inc({ code: error.code })
    return error
  }
  const refusalOf = (error: unknown): AppError | undefined => {
    const state = sqlState(error)
    if (state !== undefined && notThere.includes(state))
      return counted(billingErrors.billingUnavailable({ detail, cause: error }))
    return state === refusedState ? counted(refusal(error as Error)) : undefined
  }
  return {
    holdMicrocents,
    reserveMicrocents,
    refusesUnpriced: priced !== undefined,
    checkModel(model) {
      if (!priced || priced.priceOf(model)) return
      throw counted(billingErrors.modelUnpriced({ message: unpricedModel(model), detail: { model } }))
    },
    refusalOf,
    async gate(tenantId) {
      const account = await ledger.account(tenantId)
      if (!account) throw counted(billingErrors.registrationPending({ detail }))
      if (account.balance - account.held < Math.max(1, reserveMicrocents))
        throw counted(billingErrors.creditsExhausted({ detail }))
    },
    async extend(tenantId, runId, spent) {
      try {
        return (
          (await ledger.extend(tenantId, runId, spent, { more: holdMicrocents, least: reserveMicrocents })) ?? Infinity
        )
      } catch (error) {
        const why = refusalOf(error)
        if (why) return why
        throw error
      }
    },
    alerts: (tenantId) => budgets.alerts(tenantId),
  }
}

/** Turns the message of the database function into an error for the caller. The message holds an error code and the exceeded budget. */
function refusal({ message }: Error): AppError {
  if (message === 'registration_pending') return billingErrors.registrationPending({ detail })
  const [, told] = /^budget_exceeded (\{.*\})$/s.exec(message) ?? []
  if (told === undefined) return billingErrors.creditsExhausted({ detail })
  const { id, scope, subject, per, cap } = JSON.parse(told) as BudgetRefusal
  const whose = scope === 'tenant' ? 'the tenant' : `${names[scope] ?? scope} '${subject}'`
  const capCents = cap / microcentsPerCent
  return billingErrors.budgetExceeded({
    message: `The budget of ${whose} per ${per}, ${capCents} cents, is used up or held by other runs; an admin can raise it (PUT /api/billing/budgets).`,
    detail: { budget: { id, scope, subject, per, capCents } },
  })
}
const names: Readonly<Record<string, string>> = {
  profile: 'profile',
  key: 'key',
  end_user: 'end user',
  session: 'session',
}

/** The billing of a role that has no payment provider: nothing is held or charged. */
export const noBilling: Billing = {
  absent: true,
  holdMicrocents: 0,
  reserveMicrocents: 0,
  refusesUnpriced: false,
  checkModel: () => {},
  gate: async () => {},
  refusalOf: () => undefined,
  extend: async () => Infinity,
  alerts: async () => [],
}
