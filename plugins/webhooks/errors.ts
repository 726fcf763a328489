import { appError, notFound } from '#kernel'
import type { Refusal } from '#kit/outbound'

const invalid = appError('invalid_webhook', 400)
const sentences: Readonly<Record<Refusal, string>> = {
  not_a_url: 'The webhook address is not a URL.',
  scheme: 'A webhook address begins with https://.',
  credentials: 'A webhook address carries no user name or password: messages are signed instead.',
  address: 'The webhook address is not a public one.',
  host: 'The webhook host is not allowed here.',
}
export const invalidWebhook = (why: Refusal) => invalid({ message: sentences[why] })
export const webhooksUnavailable = appError(
  'webhooks_unavailable',
  503,
  'Webhooks need AGENT_ORC_WEBHOOK_KEY on the conductor.',
)
export const unknownDelivery = notFound
