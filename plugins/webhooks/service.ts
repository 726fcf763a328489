import type { Database } from '#contracts/database'
import type { Listing, Page } from '#contracts/paging'
import { webhookErrors } from '#contracts/webhooks'
import { unknownDelivery } from './errors.ts'
import type { Delivery, DeliveryState, Secret } from './schema.ts'
import type { SigningSecrets } from './secrets.ts'
import { currentState, rotate, type SigningState } from './secrets.store.ts'
import type { Outbox } from './store.ts'

interface WebhookServiceDeps {
  readonly database: Database
  readonly outbox: Outbox
  /** Undefined when the installation has no webhook key: then nothing can be signed. */
  readonly secrets: SigningSecrets | undefined
  readonly wake: (tenantId: string) => void
}

export interface WebhookService {
  list(tenantId: string, filter: Page & { state?: DeliveryState; runId?: string }): Promise<Listing<Delivery>>
  get(tenantId: string, id: string): Promise<Delivery>
  redeliver(tenantId: string, id: string): Promise<Delivery>
  secret(tenantId: string): Promise<Secret>
  rotate(tenantId: string): Promise<Secret>
  /** Makes messages from now on be signed with the tenant's own secret. */
  refer(tenantId: string, ref: string): Promise<Secret>
}

// Ids of messages. Other texts are refused here, because PostgreSQL would answer some of them with an error.
const idForm = /^msg_[0-9a-f]{32}$/

export function createWebhookService({ database, outbox, secrets, wake }: WebhookServiceDeps): WebhookService {
  const signing = (): SigningSecrets => {
    if (!secrets) throw webhookErrors.webhooksUnavailable()
    return secrets
  }
  const shown = (tenantId: string, state: SigningState): Secret => {
    const { version, previousUntil } = state
    return { secret: signing().shown(tenantId, state), version, previousUntil }
  }
  const get = async (tenantId: string, id: string): Promise<Delivery> => {
    const delivery = idForm.test(id) ? await outbox.find(tenantId, id) : undefined
    if (!delivery) throw unknownDelivery()
    return delivery
  }
  return {
    // No run has an id with a NUL, which PostgreSQL cannot store.
    list: async (tenantId, filter) =>
      filter.runId?.includes('\0') ? { items: [], total: 0 } : outbox.list(tenantId, filter),
    get,
    async redeliver(tenantId, id) {
      const revived = idForm.test(id) ? await outbox.revive(tenantId, id) : undefined
      if (revived) wake(tenantId)
      return revived ?? get(tenantId, id)
    },
    secret: async (tenantId) => shown(tenantId, await currentState(database, tenantId)),
    async rotate(tenantId) {
      signing()
      return shown(tenantId, await rotate(database, tenantId, null))
    },
    async refer(tenantId, ref) {
      await signing().check(tenantId, ref)
      return shown(tenantId, await rotate(database, tenantId, ref))
    },
  }
}
