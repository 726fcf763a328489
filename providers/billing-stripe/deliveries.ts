import type Stripe from 'stripe'
import type { BillingEvent } from '#contracts/billing'

/** What an event of Stripe says of credit; undefined: nothing. The payment is the reference, so that whatever is said of it twice is one. */
export function eventOf(event: Stripe.Event): BillingEvent | undefined {
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
      const { id, amount_refunded: cents, metadata } = event.data.object
      const ids = idsOf(metadata)
      return ids && { kind: 'refunded', tenantId: ids.tenantId, cents, reference: id }
    }
    default:
      return undefined
  }
}

/** A session may be complete before its money has come: then another event follows. */
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

/** As this server gave them with the checkout; payments of others have none. */
function idsOf(metadata: Stripe.Metadata | null): { tenantId: string; checkoutId: string } | undefined {
  const { tenant_id: tenantId, checkout_id: checkoutId } = metadata ?? {}
  return tenantId === undefined || checkoutId === undefined ? undefined : { tenantId, checkoutId }
}
