import { capability, slot } from '../plugin.ts'
import type { Statement, TenantTx } from './database.ts'
import { errorTable } from './errors.ts'

interface RetentionKind {
  /** The fewest days that may be set. */
  readonly least: number
  readonly about: string
}

/** The kinds of data with a retention time. */
export const retentionKinds = {
  runs: {
    least: 1,
    about: 'Days after its end that a run is kept, with its event log, its files and its webhook message.',
  },
  logs: {
    least: 1,
    about:
      'Days after its end that the event log of a run is kept; of an older one only the last event stays, with the run. Unset: as long as the run.',
  },
  workflows: {
    least: 1,
    about:
      'Days after its end that a workflow run is kept, with its nodes, events and approvals; and the outcomes of schedule times.',
  },
  messages: {
    least: 1,
    about: 'Days after its last message that a conversation is kept, with its messages, public runs and saved state.',
  },
  audit: { least: 30, about: 'Days that an entry of the audit log is kept.' },
  webhooks: { least: 1, about: 'Days that a delivered or given-up webhook message is kept.' },
  meters: { least: 1, about: 'Days that meters are kept, from which stats are computed.' },
  sessions: { least: 1, about: 'Days after its last use that an idle session is kept, with its saved state.' },
} as const satisfies Readonly<Record<string, RetentionKind>>

export type RetentionName = keyof typeof retentionKinds
export const retentionNames = Object.keys(retentionKinds) as readonly RetentionName[]
/** The most days: a hundred years. */
export const mostDays = 36_500

/** Days by kind; a kind without days is kept for ever. */
export type RetentionDays = Partial<Readonly<Record<RetentionName, number>>>

export const retentionErrors = errorTable('retention', {
  legalHold: {
    status: 409,
    retry: 'later',
    message:
      'The tenant is under a legal hold, so its data is not deleted. An operator can lift it: PATCH /api/tenants/{id} {"legalHold": false}.',
  },
  tenantErased: {
    status: 409,
    message: 'The erasure of this tenant has begun, so the tenant cannot be restored.',
  },
  holdNotTold: {
    status: 503,
    retry: true,
    message:
      'The legal hold is stored, but a server that keeps data of the tenant could not be told of it; send the request again.',
  },
  storeSilent: {
    status: 503,
    retry: true,
    message:
      'What keeps data of tenants outside the database did not answer in time. What is deleted there is deleted later, by the next pass of retention at the latest.',
  },
  noRetention: {
    status: 503,
    message: 'This server deletes no data by age: its role file has no plugin `retention`.',
  },
})

/**
 * Selects a row if data of the tenant may be deleted, and locks that row until the transaction ends. Whoever sets a legal hold can then be sure
 * that nothing is deleted afterwards.
 */
export const unlessHeld = (tenantId: string): Statement => ({
  name: 'retention-unless-held',
  text: 'SELECT id FROM tenants WHERE id = $1 AND NOT legal_hold FOR SHARE',
  values: [tenantId],
})

/** Deletes data when the tenant's retention time is over, and carries out requested erasures. */
export interface Retention {
  /** The role file's retention, for tenants without their own. */
  readonly defaults: RetentionDays
  /** How many days after its deletion a tenant is erased. Undefined: only on request. */
  readonly eraseAfter: number | undefined
  /** Starts a requested erasure now instead of at the next pass. */
  wake(): Promise<void>
  /**
   * Tells whoever keeps data of the tenant outside the database, and deletes it by age, whether the tenant is under a legal hold. Each pass repeats it
   * while the hold is set. Rejects with 503 `hold_not_told`.
   */
  tellHold(tenantId: string): Promise<void>
}
export const Retention = capability<Retention>('conductor.retention')

/**
 * Asks whoever keeps the data, with a signal that aborts after a few seconds. Rejects with 503 `store_silent` when there was no answer a little later;
 * who did not answer is then left alone for a while, for all tenants.
 */
export type AskStore = <T>(ask: (signal: AbortSignal) => Promise<T>) => Promise<T>

/**
 * Data of tenants that a plugin keeps outside the database's tables. What has a signal is called within a transaction, for which a legal hold waits and
 * which has one of the connections for reads: it takes no other one of these. The signal aborts after a few seconds. From then on nothing more is begun,
 * and what is under way is left; a little later the transaction ends, whether the call has or not.
 */
export interface TenantDataStore {
  /**
   * Deletes a part of a tenant's data, for about a second. `more`: something is left, so the call is repeated. When the signal aborts it resolves to
   * what is gone by then, or rejects if that is nothing.
   */
  erase(tenantId: string, signal: AbortSignal): Promise<ErasedPart>
  /**
   * Deletes a part of the data of deleted runs, like `erase`, and in that transaction. Called after runs were deleted. Only what it does by `ask` has
   * the signal: a statement of one tenant that takes long says nothing about the store.
   */
  sweep?(tx: TenantTx, ask: AskStore): Promise<ErasedPart>
  /**
   * For a store that deletes by age: keeps all data of the tenant, or no longer. It lasts, also over a restart, until the store is told otherwise. When
   * it resolves, nothing is being deleted any more.
   */
  hold?(tenantId: string, held: boolean, signal: AbortSignal): Promise<void>
  /** Counts the data again, for a limit of the tenant. Called every night. */
  recount?(tenantId: string): Promise<void>
}
export interface ErasedPart {
  readonly deleted: number
  readonly more: boolean
}
/** Keyed by the users' word for the data, which the proof of an erasure uses for its counts. */
export const TenantData = slot<TenantDataStore>('conductor.tenant-data')

/** Data about end users that a plugin keeps, besides their messages. */
export interface EndUserStore {
  /** The data of one person, in bounded parts, for an export. */
  items(tenantId: string, endUserId: string): AsyncIterable<readonly Readonly<Record<string, unknown>>[]>
  /**
   * Deletes all data of the person, and resolves to the amount. When the signal aborts it stops between two deletions, and is called again later.
   * Rejects with 409 `legal_hold` when the tenant is under one, which may have been set since the erasure began.
   */
  erase(tenantId: string, endUserId: string, signal: AbortSignal): Promise<number>
}
/** Keyed by the users' word for one item, e.g. `connection`. */
export const EndUserData = slot<EndUserStore>('conductor.end-user-data')
