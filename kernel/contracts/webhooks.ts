import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

export const webhookUrl = Type.String({
  minLength: 1,
  maxLength: 2_048,
  // What PostgreSQL text cannot hold is no URL either.
  pattern: '^[^\\u0000-\\u0020]*$',
  description: 'A public https address. Signed messages are posted to it as Standard Webhooks describes.',
})

/** Tells somebody when a run has ended. */
export const WebhookTarget = Type.Object({ url: webhookUrl }, { additionalProperties: false })
export type WebhookTarget = Static<typeof WebhookTarget>

/** Whether ends of runs can be told at all, and where. The telling itself hangs on the run's row. */
export interface Webhooks {
  /** AppError 400 `invalid_webhook` for an address that may not be asked, 503 `webhooks_unavailable` without a signing key. */
  check(url: string): void
}
export const Webhooks = capability<Webhooks>('conductor.webhooks')
