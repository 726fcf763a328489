import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import type { BillingEvent } from '#contracts/billing'
import { reconcile } from '../../plugins/billing/upkeep.ts'
import { Wallet } from '../../plugins/billing/wallet.ts'
import { stage, unique } from './stage.ts'

const cents = fc.integer({ min: 1, max: 5_000 })
/** What has happened to one payment, as its provider knows it. */
const payment = fc.record({
  cents,
  /** How many times as much was paid, with taxes, or what part of it, with a rebate. */
  gross: fc.constantFrom(1, 2, 0.5),
  ending: fc.constantFrom('paid', 'expired', 'expired, then paid'),
  /** What was refunded each time, as credit. */
  refunds: fc.array(cents, { maxLength: 3 }),
  disputes: fc.array(fc.record({ cents, won: fc.boolean() }), { maxLength: 2 }),
})
/** How what has happened is told: in which order, how often, and how many deliveries at once. */
const telling = fc.record({
  order: fc.array(fc.nat(), { minLength: 60, maxLength: 60 }),
  again: fc.array(fc.nat(2), { minLength: 60, maxLength: 60 }),
  atOnce: fc.integer({ min: 1, max: 6 }),
})
type Payment = typeof payment extends fc.Arbitrary<infer T> ? T : never

const tenantId = 'acme'

function eventsOf({ cents: paid, gross, ending, refunds, disputes }: Payment, checkoutId: string): BillingEvent[] {
  let refunded = 0
  const part = { tenantId, checkoutId, of: paid * gross }
  return [
    ...(ending === 'paid' ? [] : [{ kind: 'expired', tenantId, checkoutId } as const]),
    ...(ending === 'expired'
      ? []
      : [{ kind: 'paid', tenantId, checkoutId, cents: paid, reference: checkoutId } as const]),
    ...refunds.map((more) => {
      refunded += more
      return { ...part, kind: 'refunded', cents: refunded * gross, reference: `ch_${checkoutId}` } as const
    }),
    ...disputes.flatMap((dispute, i) => {
      const reference = `dp_${i}_${checkoutId}`
      const told = { ...part, kind: 'disputed', cents: dispute.cents * gross, reference } as const
      return dispute.won
        ? [
            { ...told, won: false },
            { ...told, won: true },
          ]
        : [{ ...told, won: false }]
    }),
  ]
}
const sum = (all: readonly number[]): number => all.reduce((total, one) => total + one, 0)
/** What is left of a payment when everything was told, in any order. */
const leftOf = ({ cents: paid, ending, refunds, disputes }: Payment): number =>
  (ending === 'expired' ? 0 : paid) - sum(refunds) - sum(disputes.map((one) => (one.won ? 0 : one.cents)))

test('whatever a provider tells in whatever order, however often and at once, comes to what has happened', async (t) => {
  const { ledger, database, account, grant } = await stage(t)
  const packs = [{ cents: 500, label: 'Credit of 5' }]
  const wallet = new Wallet({
    ledger,
    provider: undefined,
    name: 'stripe',
    currency: 'usd',
    packs,
    publicUrl: undefined,
  })
  await grant(1)
  let expected = 1

  await fc.assert(
    fc.asyncProperty(fc.array(payment, { minLength: 1, maxLength: 4 }), telling, async (payments, how) => {
      const ids = payments.map(() => unique('chk'))
      for (const [i, { cents: asked }] of payments.entries())
        await ledger.openCheckout(tenantId, { id: ids[i]!, provider: 'stripe', cents: asked, createdBy: 'key' })
      const told = payments
        .flatMap((one, i) => eventsOf(one, ids[i]!))
        .flatMap((event, i) => Array.from({ length: 1 + how.again[i % 60]! }, () => event))
        .map((event, i) => ({ event, at: how.order[(i * 7) % 60]! + i / 1_000 }))
        .toSorted((a, b) => a.at - b.at)
      for (let at = 0; at < told.length; at += how.atOnce)
        await Promise.all(told.slice(at, at + how.atOnce).map(({ event }) => wallet.take('stripe', event)))

      expected += sum(payments.map(leftOf))
      assert.equal((await account())!.balance, expected)
      for (const [i, { ending }] of payments.entries()) {
        const { state } = await wallet.payment(tenantId, ids[i]!)
        assert.equal(state, ending === 'expired' ? 'expired' : 'paid')
      }
      assert.deepEqual(await reconcile(database, tenantId), [])
    }),
    { numRuns: 40 },
  )
})
