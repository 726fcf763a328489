import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { Database } from '#contracts/database'
import { operatedConductor } from '#testing'
import { delivery, secretKey, startStripe, webhookSecret } from './stripe-api.ts'

interface Wallet {
  readonly registered: boolean
  readonly balanceCents: number
}

/** The conductor with the provider `stripe` against its stand-in. */
async function stage(t: TestContext, variables: Readonly<Record<string, string>> = {}) {
  const stripe = await startStripe(t)
  const { parts, operator, askingWith } = await operatedConductor(t, {
    needs: { database: Database },
    variables: {
      AGENT_ORC_BILLING: 'stripe',
      AGENT_ORC_ENV: 'prod',
      STRIPE_SECRET_KEY: secretKey,
      STRIPE_WEBHOOK_SECRET: webhookSecret,
      STRIPE_API_URL: stripe.url,
      AGENT_ORC_PUBLIC_URL: 'https://agents.example.com',
      ...variables,
    },
  })
  const owner = async (method: 'GET' | 'POST', url: string, body?: object) => {
    const { status, body: answer } = await operator(method, url, body)
    return { status, body: answer }
  }
  const deliver = async ({ body, headers }: ReturnType<typeof delivery>, provider = 'stripe') => {
    const answer = await askingWith(undefined)('POST', `/api/billing/events/${provider}`, body, headers)
    const { outcome, error } = answer.json<{ outcome?: string; error?: string }>()
    return [answer.statusCode, outcome ?? error]
  }
  const wallet = async () => (await owner('GET', '/api/billing/wallet')).body as unknown as Wallet
  /** The session of a checkout as events have it. */
  const session = (at: number, more: object = {}) => {
    const { id, ...fields } = stripe.sessions[at]!
    const metadata = { tenant_id: fields['metadata[tenant_id]'], checkout_id: fields['metadata[checkout_id]'] }
    return { id, object: 'checkout.session', payment_status: 'paid', amount_subtotal: 500, metadata, ...more }
  }
  return { stripe, owner, deliver, wallet, session, database: parts.database }
}

test('a checkout makes a customer once and a payment page; what was paid is credited once, whatever is said of it in any order', async (t) => {
  const { stripe, owner, deliver, wallet, session } = await stage(t)
  assert.deepEqual(await owner('GET', '/api/billing/wallet').then(({ body }) => body['registered']), false)
  assert.equal((await owner('POST', '/api/billing/portal')).status, 404)
  const asked = await owner('POST', '/api/billing/checkout', { cents: 500 })
  assert.deepEqual(asked, { status: 200, body: { url: String(stripe.sessions[0]!['url']) } })
  await owner('POST', '/api/billing/checkout', { cents: 2000 })
  assert.equal(stripe.customers.length, 1)
  const made = stripe.sessions[0]!
  assert.deepEqual(
    [
      made['mode'],
      made['customer'],
      made['client_reference_id'],
      made['line_items[0][price_data][currency]'],
      made['line_items[0][price_data][unit_amount]'],
      made['payment_intent_data[metadata][tenant_id]'],
      made['success_url'],
    ],
    [
      'payment',
      stripe.customers[0]!.id,
      'default',
      'usd',
      '500',
      'default',
      'https://agents.example.com/api/billing/wallet',
    ],
  )
  assert.match(String((await owner('POST', '/api/billing/portal')).body['url']), /^https:\/\/billing\.stripe\.test\//)

  // Complete before the money has come; then it comes. Both are said often, and the refund of a part before any of them.
  // With its taxes, as many again, 1000 were paid for 500: what is given back of those takes half as much credit.
  const charge = { amount: 1_000, metadata: session(0).metadata }
  const refund = (cents: number) =>
    delivery('charge.refunded', { id: 'ch_1', object: 'charge', ...charge, amount_refunded: 2 * cents })
  assert.deepEqual(await deliver(refund(100)), [200, 'taken'])
  assert.equal((await wallet()).balanceCents, -100)
  assert.deepEqual(await deliver(delivery('checkout.session.completed', session(0, { payment_status: 'unpaid' }))), [
    200,
    'ignored',
  ])
  const same = delivery('checkout.session.completed', session(0))
  const said = Array.from({ length: 50 }, (_, i) =>
    i % 3 === 0
      ? same
      : delivery(i % 3 === 1 ? 'checkout.session.completed' : 'checkout.session.async_payment_succeeded', session(0)),
  )
  const outcomes = await Promise.all(said.map((one) => deliver(one)))
  assert.equal(outcomes.filter(([, outcome]) => outcome === 'taken').length, 1)
  assert.ok(outcomes.every(([status]) => status === 200))
  assert.equal((await wallet()).balanceCents, 400)
  await Promise.all([300, 100, 200, 300].map((cents) => deliver(refund(cents))))
  assert.equal((await wallet()).balanceCents, 200)
  assert.deepEqual(await deliver(delivery('checkout.session.expired', session(1))), [200, 'taken'])
  assert.equal((await wallet()).balanceCents, 200)
  for (const other of [
    delivery('customer.created', { id: 'cus_1', object: 'customer' }),
    delivery('checkout.session.completed', session(0, { metadata: {} })),
    delivery('checkout.session.completed', session(0, { metadata: null })),
  ]) {
    assert.deepEqual(await deliver(other), [200, 'ignored'])
  }
  // A dispute takes its money, and gives it back when it is won: whatever is said of it first.
  const dispute = (id: string, type: string, status: string, of = 'ch_1') =>
    delivery(`charge.dispute.${type}`, { id, object: 'dispute', amount: 300, charge: of, status })
  assert.deepEqual(await deliver(dispute('dp_1', 'created', 'needs_response')), [502, 'provider_failed'])
  stripe.charges.set('ch_1', charge).set('ch_of_others', { amount: 1_000, metadata: {} })
  assert.deepEqual(await deliver(dispute('dp_0', 'created', 'warning_needs_response')), [200, 'ignored'])
  assert.deepEqual(await deliver(dispute('dp_0', 'created', 'needs_response', 'ch_of_others')), [200, 'ignored'])
  for (const [type, status, outcome, balance] of [
    ['created', 'needs_response', 'taken', 50],
    ['funds_withdrawn', 'needs_response', 'known', 50],
    ['closed', 'won', 'taken', 200],
    ['created', 'needs_response', 'known', 200],
  ] as const) {
    assert.deepEqual(await deliver(dispute('dp_1', type, status)), [200, outcome])
    assert.equal((await wallet()).balanceCents, balance)
  }
  const unordered = [dispute('dp_2', 'funds_reinstated', 'won'), dispute('dp_2', 'created', 'needs_response')]
  await Promise.all([...unordered, ...unordered.toReversed()].map((one) => deliver(one)))
  assert.equal((await wallet()).balanceCents, 200)
  assert.deepEqual(await deliver(dispute('dp_3', 'closed', 'lost')), [200, 'taken'])
  assert.equal((await wallet()).balanceCents, 50)
  const nobody = { tenant_id: 'nobody', checkout_id: 'chk_1' }
  assert.deepEqual(await deliver(delivery('checkout.session.completed', session(0, { metadata: nobody }))), [
    200,
    'known',
  ])
})

test('what Stripe did not sign, or long ago, is refused; so is what is no event', async (t) => {
  const { owner, deliver, wallet, session } = await stage(t)
  await owner('POST', '/api/billing/checkout', { cents: 500 })
  const good = delivery('checkout.session.completed', session(0))
  const signed = good.headers['stripe-signature']!
  const old = Math.floor(Date.now() / 1_000) - 301
  for (const bad of [
    { ...good, headers: {} },
    { ...good, headers: { 'stripe-signature': '' } },
    { ...good, headers: { 'stripe-signature': signed.slice(0, -1) } },
    { ...good, headers: { 'stripe-signature': signed.replace('v1=', 'v0=') } },
    { ...good, body: good.body.replace('500', '501') },
    { ...good, body: `${good.body} ` },
    { ...good, body: '' },
    delivery('checkout.session.completed', session(0), { secret: 'whsec_other' }),
    delivery('checkout.session.completed', session(0), { at: old }),
    delivery('checkout.session.completed', session(0), { scheme: 'v0' }),
  ]) {
    assert.deepEqual(await deliver(bad), [400, 'invalid_event'], JSON.stringify(bad.headers))
  }
  for (const provider of ['ledger', 'nobody', '__proto__', 'constructor']) {
    assert.deepEqual(await deliver(good, provider), [404, 'not_found'])
  }
  assert.deepEqual(await wallet().then(({ balanceCents }) => balanceCents), 0)
  assert.deepEqual(await deliver(good), [200, 'taken'])
})

test('a key that Stripe does not know keeps the server from starting; a Stripe that is away only checkouts from being made', async (t) => {
  await assert.rejects(stage(t, { STRIPE_SECRET_KEY: 'sk_test_wrong' }), /Stripe does not know STRIPE_SECRET_KEY/)
  await assert.rejects(stage(t, { STRIPE_WEBHOOK_SECRET: '' }), /STRIPE_WEBHOOK_SECRET/)
  const { stripe, owner, wallet } = await stage(t, { STRIPE_API_URL: 'http://127.0.0.1:1' })
  assert.equal(stripe.requests.length, 0)
  const { status, body } = await owner('POST', '/api/billing/checkout', { cents: 500 })
  assert.deepEqual([status, body['error']], [502, 'provider_failed'])
  assert.equal((await wallet()).registered, true)
})
