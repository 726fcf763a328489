import { notFound } from '#kernel'
import { webhookErrors } from '#contracts/webhooks'
import type { Refusal } from '#kit/outbound'

const sentences: Readonly<Record<Refusal, string>> = {
  not_a_url: 'The webhook address is not a URL.',
  scheme: 'A webhook address begins with https://.',
  credentials: 'A webhook address carries no user name or password: messages are signed instead.',
  address: 'The webhook address is not a public one.',
  host: 'The webhook host is not allowed here.',
}
export const invalidWebhook = (why: Refusal) => webhookErrors.invalidWebhook({ message: sentences[why] })
export const unknownDelivery = notFound
