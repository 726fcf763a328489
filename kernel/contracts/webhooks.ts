import { capability } from '../plugin.ts'
import { errorTable } from './errors.ts'
import type { RunSummary } from './runs.ts'

export const webhookErrors = errorTable('webhooks', {
  invalidWebhook: { status: 400, about: 'The address may not be told of runs; the sentence says why.' },
  webhooksUnavailable: { status: 503, message: 'Webhooks need AGENT_ORC_WEBHOOK_KEY on the conductor.' },
})

/** Checks webhook addresses. The message itself is written with the row of the run. */
export interface Webhooks {
  /** AppError 400 `invalid_webhook` for an address that a tenant may not have asked, 503 `webhooks_unavailable` without a signing key. */
  check(tenantId: string, url: string): void
  /** Gives the deliverer a way to read runs that have ended. Nothing is delivered before this call. */
  readRuns(find: FindRun): void
}
export type FindRun = (tenantId: string, runId: string) => Promise<RunSummary | undefined>
export const Webhooks = capability<Webhooks>('conductor.webhooks')
