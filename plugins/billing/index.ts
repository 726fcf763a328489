import { Type } from '@sinclair/typebox'
import { Counter, Gauge } from 'prom-client'
import { definePlugin, maybe, Settings } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Billing, billingErrors, BillingProviders } from '#contracts/billing'
import { Database, databaseErrors, presentDatabase } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { Kv } from '#contracts/kv'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { microcentsPerCent, Prices } from '#contracts/prices'
import { webhookErrors, Webhooks } from '#contracts/webhooks'
import { createClientAddress, trustedProxies } from '#kit'
import { Budgets } from './budgets.ts'
import { budgetRoutes, ledgerRoutes, operatorRoutes, walletRoutes } from './routes.ts'
import { eventErrors, eventRoute } from './events.ts'
import { createHolds, noBilling } from './holds.ts'
import { Ledger } from './ledger.ts'
import { Pack } from './schema.ts'
import { upkeep } from './upkeep.ts'
import { Wallet } from './wallet.ts'

const defaultPacks: Pack[] = [
  { cents: 500, label: 'Credit of 5' },
  { cents: 2_000, label: 'Credit of 20' },
  { cents: 10_000, label: 'Credit of 100' },
]

/**
 * Prepaid credit of tenants: a ledger in PostgreSQL, from which the statements of runs hold and settle, budgets that bound what runs
 * spend, and a provider that takes payments. Specification 4.8 rule 4 and 4.10.
 */
export default definePlugin({
  name: 'billing',
  config: Settings({
    provider: Type.Optional(
      Type.String({
        description: 'AGENT_ORC_BILLING: the payment provider, ledger or stripe. Without one nothing is billed.',
      }),
    ),
    env: Type.String({
      default: 'dev',
      description: 'AGENT_ORC_ENV: with any other value than dev the server does not start without a provider.',
    }),
    currency: Type.String({
      default: 'usd',
      pattern: '^[a-z]{3}$',
      description: 'The currency; a cent is its hundredth part.',
    }),
    packs: Type.Array(Pack, {
      default: defaultPacks,
      minItems: 1,
      description: 'The packs of credit that tenants can buy.',
    }),
    holdCents: Type.Number({
      default: 1,
      minimum: 0.000001,
      maximum: 1_000_000,
      description: 'How much credit is held for a run when it starts, and each time it needs more.',
    }),
    reserveCents: Type.Number({
      default: 0,
      minimum: 0,
      maximum: 1_000_000,
      description:
        'Credit that must be left for a run to begin, and to continue after a model call. If it covers the most expensive call, no call takes a balance below 0.',
    }),
    refuseUnpriced: Type.Boolean({
      default: false,
      description: 'Refuses models without a price. By default they are not charged, and are reported.',
    }),
    publicUrl: Type.Optional(
      Type.String({
        description: 'The URL of this server for browsers, used in links; the host of the request by default.',
      }),
    ),
    eventsPerMinute: Type.Integer({ default: 600, minimum: 1, description: 'Deliveries of one address.' }),
    trustedProxies,
  }),
  errors: [billingErrors, eventErrors, databaseErrors, limitErrors, webhookErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    providers: BillingProviders,
    kv: Kv,
    limits: maybe(TenantLimits),
    prices: maybe(Prices),
    webhooks: maybe(Webhooks),
    jobs: maybe(Jobs),
  },
  provides: { billing: Billing },
  async setup({ config, deps, metrics, routes, log }) {
    const { guard, providers, kv, jobs, limits, prices, webhooks } = deps
    const { provider: name, currency, packs, publicUrl } = config
    const provider = chosen(providers, config)
    const database = presentDatabase(deps.database)
    if (provider && !database) throw new Error('billing needs PostgreSQL: set POSTGRES_DSN')
    await provider?.verify?.()

    const ledger = new Ledger(deps.database)
    const wallet = new Wallet({ ledger, limits, provider, name: name ?? '', currency, packs, publicUrl })
    const budgets = new Budgets(deps.database, webhooks, limits)
    routes('conductor', async (app) => {
      guard.protect(app)
      if (!provider) {
        app.addHook('onRequest', async () => {
          throw billingErrors.billingNotConfigured()
        })
      }
      walletRoutes(app, guard, wallet)
      ledgerRoutes(app, guard, ledger)
      budgetRoutes(app, guard, budgets)
      operatorRoutes(app, { wallet, manual: provider?.manual === true })
    })
    routes('conductor', async (app) => {
      const outcomes = new Counter({
        name: 'billing_events_total',
        help: 'Webhook deliveries of billing providers, by outcome.',
        labelNames: ['outcome'],
        registers: [metrics],
      })
      const clientOf = createClientAddress(config.trustedProxies)
      const { eventsPerMinute: most } = config
      await eventRoute(app, { kv, wallet, providers: provider ? { [name!]: provider } : {}, outcomes, most, clientOf })
    })
    if (!provider || !database) return { billing: noBilling }

    limits?.uses('budgets', (tenantId) => budgets.count(tenantId))
    const refused = new Counter({
      name: 'billing_refusals_total',
      help: 'Runs that were refused or ended because credit or a budget was spent.',
      labelNames: ['code'],
      registers: [metrics],
    })
    const audited = new Gauge({
      name: 'billing_discrepancies',
      help: 'Inconsistencies in the ledgers, and checks that failed, at the last hourly check. Anything but 0 is a bug.',
      registers: [metrics],
    })
    jobs?.every('billing', '7 * * * *', (signal) => upkeep({ database, prices, signal, log, audited }))
    const holdMicrocents = Math.max(1, Math.round(config.holdCents * microcentsPerCent))
    const reserveMicrocents = Math.round(config.reserveCents * microcentsPerCent)
    const priced = config.refuseUnpriced ? (prices ?? { priceOf: () => undefined }) : undefined
    return { billing: createHolds({ ledger, budgets, holdMicrocents, reserveMicrocents, priced, refused }) }
  },
})

interface Choice {
  readonly provider?: string
  readonly env: string
}

/** Specification 1.1: outside development the operator has to choose a payment provider. */
function chosen<T>(providers: ReadonlyMap<string, T>, { provider, env }: Choice): T | undefined {
  if (provider === undefined) {
    if (env === 'dev') return undefined
    throw new Error(
      `AGENT_ORC_ENV is '${env}', which requires a payment provider: set AGENT_ORC_BILLING to ledger or stripe, or AGENT_ORC_ENV to dev`,
    )
  }
  const found = providers.get(provider)
  if (found) return found
  const all = [...providers.keys()].join(', ') || 'none'
  throw new Error(`AGENT_ORC_BILLING is '${provider}', which is not configured; these are: ${all}`)
}
