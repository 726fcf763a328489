import { defineBillingProvider } from '#contracts/billing'

/** Payments that reach the operator outside this server, such as a transfer. The checkout page is where an operator confirms the payment. */
export default defineBillingProvider({
  name: 'ledger',
  create: async () => ({
    manual: true,
    checkout: async ({ origin, tenantId, id }) => ({
      url: `${origin}/api/billing/checkouts/${encodeURIComponent(tenantId)}/${id}`,
    }),
  }),
})
