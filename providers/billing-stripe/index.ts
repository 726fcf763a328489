import { Type } from '@sinclair/typebox'
import type Stripe from 'stripe'
import { Settings } from '#kernel'
import {
  billingErrors,
  type BillingEvent,
  type BillingProvider,
  type Checkout,
  defineBillingProvider,
} from '#contracts/billing'

const timeoutMs = 10_000

/** Payments by Stripe Checkout: customers, payment pages, the customer portal, and events. */
export default defineBillingProvider({
  name: 'stripe',
  config: Settings({
    secretKey: Type.Optional(
      Type.String({
        pattern: '^(sk|rk)_[A-Za-z0-9_]+$',
        description: 'STRIPE_SECRET_KEY: the secret or a restricted key. Without it Stripe is not configured.',
      }),
    ),
    webhookSecret: Type.Optional(
      Type.String({
        pattern: '^whsec_[A-Za-z0-9+/=_-]+$',
        description: 'STRIPE_WEBHOOK_SECRET: the secret with which Stripe signs events to /api/billing/events/stripe.',
      }),
    ),
    apiUrl: Type.Optional(Type.String({ description: 'The URL of the API; by default that of Stripe.' })),
  }),
  async create({ config: { secretKey, webhookSecret, apiUrl }, log }) {
    if (secretKey === undefined) return undefined
    if (webhookSecret === undefined)
      throw new Error('Stripe cannot report payments: set STRIPE_WEBHOOK_SECRET to the signing secret of its endpoint')
    const { default: Client } = await import('stripe')
    const client = new Client(secretKey, {
      timeout: timeoutMs,
      maxNetworkRetries: 2,
      telemetry: false,
      ...addressOf(apiUrl),
    })
    return stripeProvider(client, webhookSecret, (error, message) => log.warn({ stripe: reasonOf(error) }, message))
  },
})

function addressOf(url: string | undefined): Stripe.StripeConfig {
  if (url === undefined) return {}
  const { hostname, port, protocol } = new URL(url)
  const https = protocol === 'https:'
  return { host: hostname, port: port || (https ? 443 : 80), protocol: https ? 'https' : 'http' }
}

function stripeProvider(
  client: Stripe,
  webhookSecret: string,
  warn: (error: unknown, message: string) => void,
): BillingProvider {
  const asked = async <T>(call: Promise<T>): Promise<T> =>
    call.catch((error: unknown) => {
      warn(error, 'a request to Stripe failed')
      throw billingErrors.providerFailed()
    })
  const customerOf = async ({ tenantId, customer }: Checkout): Promise<string> => {
    if (customer !== undefined) return customer
    const metadata = { tenant_id: tenantId }
    // The idempotency key makes two concurrent requests create one customer.
    const made = client.customers.create({ name: tenantId, metadata }, { idempotencyKey: `customer-${tenantId}` })
    return (await asked(made)).id
  }
  const signed = (body: Buffer, signature: string | string[] | undefined): Stripe.Event => {
    if (typeof signature !== 'string') throw billingErrors.invalidEvent()
    try {
      // `constructEvent` also refuses events older than five minutes.
      return client.webhooks.constructEvent(body, signature, webhookSecret)
    } catch {
      // The library's error holds the whole event and the signature, so it is not passed on.
      throw billingErrors.invalidEvent()
    }
  }
  return {
    async checkout(of) {
      const customer = await customerOf(of)
      const { id, tenantId, cents, currency, label, price, origin } = of
      const metadata = { tenant_id: tenantId, checkout_id: id }
      const back = `${origin}/api/billing/wallet`
      const made = client.checkout.sessions.create(
        {
          mode: 'payment',
          customer,
          client_reference_id: tenantId,
          line_items: [
            price === undefined
              ? { quantity: 1, price_data: { currency, unit_amount: cents, product_data: { name: label } } }
              : { quantity: 1, price },
          ],
          metadata,
          // Refunds name the payment, not the checkout, so the payment gets the metadata too.
          payment_intent_data: { metadata },
          success_url: back,
          cancel_url: back,
        },
        { idempotencyKey: id },
      )
      const { url } = await asked(made)
      if (!url) throw billingErrors.providerFailed()
      return { url, customer }
    },
    portal: async (customer, origin) => {
      const made = client.billingPortal.sessions.create({ customer, return_url: `${origin}/api/billing/wallet` })
      return (await asked(made)).url
    },
    async read(body, headers) {
      const event = signed(body, headers['stripe-signature'])
      if (!isDispute(event)) return eventOf(event)
      const { charge } = event.data.object
      // A dispute does not name the payment's tenant, so Stripe is asked for the charge. If Stripe cannot be reached now, it sends the event again
      // later.
      return disputeOf(event, typeof charge === 'string' ? await asked(client.charges.retrieve(charge)) : charge)
    },
    async verify() {
      try {
        await client.balance.retrieve({}, { maxNetworkRetries: 0 })
      } catch (error) {
        const { type } = error as { type?: string }
        if (type === 'StripeAuthenticationError') throw new Error('Stripe does not know STRIPE_SECRET_KEY')
        // A restricted key may not read the balance. The server also starts when Stripe cannot be reached.
        if (type !== 'StripePermissionError') warn(error, 'Stripe could not be asked whether it knows its key')
      }
    },
  }
}

/** Describes a failed call by status and code only: Stripe's text may repeat the request, including its key. */
function reasonOf(error: unknown): object {
  const { type, code, statusCode, requestId, detail } = error as Partial<Stripe.errors.StripeError> & {
    readonly detail?: { readonly code?: string }
  }
  const word = (text: unknown): string | undefined =>
    typeof text === 'string' && /^[\w-]{1,64}$/.test(text) ? text : undefined
  return { type, code: word(code), status: statusCode, requestId: word(requestId), socket: word(detail?.code) }
}

/** The credit event of a Stripe event. Undefined: there is none. The payment is the reference, so a repeated event counts once. */
function eventOf(event: Stripe.Event): BillingEvent | undefined {
  switch (event.type) {
    case 'checkout.session.completed':
    case 'checkout.session.async_payment_succeeded':
      return paid(event.data.object)
    case 'checkout.session.expired':
    case 'checkout.session.async_payment_failed': {
      const ids = idsOf(event.data.object.metadata)
      return ids && { kind: 'expired', ...ids }
    }
    case 'charge.refunded': {
      const { id, amount_refunded: cents, amount: of, metadata } = event.data.object
      const ids = idsOf(metadata)
      return ids && { kind: 'refunded', ...ids, cents, of, reference: id }
    }
    default:
      return undefined
  }
}

type DisputeEvent = Extract<Stripe.Event, { data: { object: Stripe.Dispute } }>
const isDispute = (event: Stripe.Event): event is DisputeEvent => event.type.startsWith('charge.dispute.')

/** The event of a dispute of this charge. An inquiry has not moved money yet. */
function disputeOf({ type, data }: DisputeEvent, { metadata, amount: of }: Stripe.Charge): BillingEvent | undefined {
  const { id, amount: cents, status } = data.object
  const ids = idsOf(metadata)
  const won = status === 'won' || type === 'charge.dispute.funds_reinstated'
  const early = status.startsWith('warning_') || status === 'prevented'
  const moved = won || type === 'charge.dispute.funds_withdrawn' || !early
  return ids && moved && cents > 0 ? { kind: 'disputed', ...ids, cents, of, reference: id, won } : undefined
}

/** A checkout session may be complete before the money has arrived. Another event follows in that case. */
function paid({
  id,
  payment_status: status,
  amount_subtotal: cents,
  metadata,
}: Stripe.Checkout.Session): BillingEvent | undefined {
  const ids = idsOf(metadata)
  if (!ids || status !== 'paid' || !cents) return undefined
  return { kind: 'paid', ...ids, cents, reference: id }
}

/** The metadata that this server sent with the checkout. Undefined for other payments. */
function idsOf(metadata: Stripe.Metadata | null): { tenantId: string; checkoutId: string } | undefined {
  const { tenant_id: tenantId, checkout_id: checkoutId } = metadata ?? {}
  return tenantId === undefined || checkoutId === undefined ? undefined : { tenantId, checkoutId }
}
