import { defineBillingProvider } from '#contracts/billing'

/** Payments that reach the operator in another way, such as a transfer: the page of a checkout is where an operator confirms it. */
export default defineBillingProvider({
  name: 'ledger',
  create: async () => ({
    manual: true,
    checkout: async ({ origin, tenantId, id }) => ({
      url: `${origin}/api/billing/checkouts/${encodeURIComponent(tenantId)}/${id}`,
    }),
  }),
})
