import { createHmac, randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { type ApiRequest, startStandInApi } from '#testing'

export const secretKey = 'sk_test_standin'
export const webhookSecret = `whsec_${randomBytes(24).toString('base64')}`

interface Made {
  readonly id: string
  readonly [field: string]: unknown
}

/**
 * Stands for the API of Stripe, as its reference documents it: form-encoded requests with a bearer key, an `Idempotency-Key` that
 * answers the same again, errors as `{error: {type, message}}`. Customers, Checkout sessions, portal sessions, the balance, charges.
 */
export async function startStripe(t: Pick<TestContext, 'after'>) {
  const answered = new Map<string, Made>()
  const customers: Made[] = []
  const sessions: Made[] = []
  /** What is known of each charge beside its id. */
  const charges = new Map<string, object>()
  let count = 0
  const made = (kind: string, form: URLSearchParams): Made => {
    const id = `${kind}_test_${++count}`
    const fields = Object.fromEntries(form)
    if (kind === 'cus') return (customers.push({ id, object: 'customer', ...fields }), customers.at(-1)!)
    const url = `https://checkout.stripe.test/${id}`
    if (kind === 'bps') return { id, object: 'billing_portal.session', url: `https://billing.stripe.test/${id}` }
    sessions.push({ id, object: 'checkout.session', url, ...fields })
    return sessions.at(-1)!
  }
  const kinds: Readonly<Record<string, string>> = {
    '/v1/customers': 'cus',
    '/v1/checkout/sessions': 'cs',
    '/v1/billing_portal/sessions': 'bps',
  }
  const api = await startStandInApi(t, ({ method, url, headers, body }: ApiRequest) => {
    if (headers.authorization !== `Bearer ${secretKey}`)
      return failed(401, 'invalid_request_error', 'Invalid API Key provided')
    if (method === 'GET' && url === '/v1/balance') return { status: 200, body: { object: 'balance', available: [] } }
    const charge = /^\/v1\/charges\/(\w+)$/.exec(url)?.[1]
    if (method === 'GET' && charge && charges.has(charge))
      return { status: 200, body: { id: charge, ...charges.get(charge) } }
    const kind = kinds[url]
    if (method !== 'POST' || kind === undefined) return failed(404, 'invalid_request_error', 'Unrecognized request URL')
    if (headers['content-type'] !== 'application/x-www-form-urlencoded')
      return failed(400, 'invalid_request_error', 'no form')
    const again = headers['idempotency-key']
    const known = typeof again === 'string' ? answered.get(again) : undefined
    const answer = known ?? made(kind, new URLSearchParams(body.toString()))
    if (typeof again === 'string') answered.set(again, answer)
    return { status: 200, body: answer }
  })
  return { ...api, customers, sessions, charges }
}

const failed = (status: number, type: string, message: string) => ({ status, body: { error: { type, message } } })

/** A delivery of Stripe: its body, and the header with which it is signed. Signed now, with the secret of the endpoint, unless given. */
export function delivery(
  type: string,
  object: object,
  { at = Math.floor(Date.now() / 1_000), secret = webhookSecret, scheme = 'v1' } = {},
): { body: string; headers: Record<string, string> } {
  const id = `evt_${randomBytes(8).toString('hex')}`
  const body = JSON.stringify({ id, object: 'event', type, created: at, data: { object } })
  const signature = createHmac('sha256', secret).update(`${at}.${body}`).digest('hex')
  return { body, headers: { 'stripe-signature': `t=${at},${scheme}=${signature}`, 'content-type': 'application/json' } }
}
