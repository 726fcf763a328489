import { Type } from '@sinclair/typebox'
import type { Counter } from 'prom-client'
import { access, type App, errorTable, failures } from '#kernel'
import { billingErrors, type BillingProvider } from '#contracts/billing'
import type { Kv } from '#contracts/kv'
import { addressLimit, type ClientAddress, takeBytes } from '#kit'
import type { Wallet } from './wallet.ts'

/** Bytes of one event. Events name payments and customers, and are a few kilobytes long. */
const bodyLimit = 512 * 1024

export const eventErrors = errorTable('billing-events', {
  notFound: { status: 404, message: 'No billing provider of this name sends events here.' },
  rateLimited: {
    status: 429,
    retry: true,
    message: 'Too many deliveries came from this address; wait as Retry-After says.',
  },
})

const Params = Type.Object({
  provider: Type.String({ description: 'Name of the billing provider, such as `stripe`.' }),
})
const Receipt = Type.Object({
  outcome: Type.Union(
    ['taken', 'known', 'ignored'].map((one) => Type.Literal(one)),
    {
      description:
        '`known`: it was received before, or is about no tenant here. `ignored`: it does not concern credit.',
    },
  ),
})

interface EventParts {
  readonly kv: Pick<Kv, 'hit'>
  readonly wallet: Wallet
  readonly providers: Readonly<Record<string, BillingProvider>>
  readonly outcomes: Counter
  /** The most deliveries that one client address may send per minute. */
  readonly most: number
  readonly clientOf: ClientAddress
}

/** Receives the webhooks of a billing provider. The route is public and accepts signed events only. */
export async function eventRoute(
  app: App,
  { kv, wallet, providers, outcomes, most, clientOf }: EventParts,
): Promise<void> {
  const limit = await addressLimit(app, {
    name: 'billing-events',
    kv,
    clientOf,
    max: most,
    refused: (when) => {
      outcomes.inc({ outcome: 'limited' })
      return eventErrors.rateLimited(when)
    },
  })
  // The signature covers the raw bytes of the body, so the body must not be parsed first.
  takeBytes(app, bodyLimit)
  app.post(
    '/api/billing/events/:provider',
    {
      ...access('public'),
      bodyLimit,
      onRequest: limit,
      schema: {
        tags: ['billing'],
        summary: 'Receive an event of a billing provider',
        description:
          'In the form of the provider, with its signature. Repeated events, and events in another order, have the same result.',
        params: Params,
        response: {
          200: Receipt,
          ...failures(billingErrors.invalidEvent, ...Object.values(eventErrors)),
        },
      },
    },
    async (request) => {
      const { provider: name } = request.params
      const provider = Object.hasOwn(providers, name) ? providers[name] : undefined
      if (!provider?.read) throw eventErrors.notFound()
      const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0)
      const event = await provider.read(body, request.headers).catch((error: unknown) => {
        outcomes.inc({ outcome: 'refused' })
        throw error
      })
      const outcome = !event ? 'ignored' : (await wallet.take(name, event)) ? 'taken' : 'known'
      outcomes.inc({ outcome })
      return { outcome }
    },
  )
}
