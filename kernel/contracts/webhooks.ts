import { capability } from '../plugin.ts'
import type { TenantTx } from './database.ts'
import { errorTable } from './errors.ts'
import type { RunSummary } from './runs.ts'

export const webhookErrors = errorTable('webhooks', {
  invalidWebhook: { status: 400, about: 'Runs may not be sent to this address; the sentence says why.' },
  webhooksUnavailable: { status: 503, message: 'Webhooks need AGENT_ORC_WEBHOOK_KEY on the conductor.' },
})

/** A webhook message about something other than the end of a run. */
export interface Told {
  readonly url: string
  /** The message type, e.g. `app.connection.expired`. */
  readonly type: string
  readonly data: Readonly<Record<string, unknown>>
}

/** Checks webhook addresses, and accepts messages. The message about a run is written together with the row of the run. */
export interface Webhooks {
  /** AppError 400 `invalid_webhook` for an address that tenants may not use, 503 `webhooks_unavailable` without a signing key. */
  check(tenantId: string, url: string): void
  /** Sends a message at least once, provided that the transaction commits. */
  tell(tx: TenantTx, told: Told): Promise<void>
  /** Registers how ended runs are read. Nothing is delivered before this call. */
  readRuns(find: FindRun): void
}
export type FindRun = (tenantId: string, runId: string) => Promise<RunSummary | undefined>
export const Webhooks = capability<Webhooks>('conductor.webhooks')
