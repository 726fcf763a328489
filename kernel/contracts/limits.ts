import type { FastifyRequest } from 'fastify'
import { type AppError, errorTable } from './errors.ts'
import type { Kv } from './kv.ts'
import type { App } from '../http/app.ts'
import { capability } from '../plugin.ts'
import { limitKinds, type LimitName, type Limits, type RequestLimit } from './limit-kinds.ts'

export {
  defaultLimits,
  largestOf,
  leastOf,
  limitKinds,
  type LimitName,
  limitNames,
  type Limits,
  type RequestLimit,
} from './limit-kinds.ts'

export const limitErrors = errorTable('limits', {
  limitReached: {
    status: 429,
    retry: 'later',
    about: 'The tenant has reached a limit; `limit` names it, `max` is its value. Waiting helps.',
  },
  limitExceeded: {
    status: 409,
    about:
      'The tenant has, or would have, more of something than its limit; `limit` names the limit, `max` is its value.',
  },
})

export const isOverLimit = ({ code }: AppError): boolean =>
  code === limitErrors.limitReached.row.code || code === limitErrors.limitExceeded.row.code

/** The refusal of a tenant that exceeds a limit. `now`: what the tenant has of it, if that is less than its limit. */
export function overLimit(limit: LimitName, max: number, retryAfterSeconds?: number, now = max): AppError {
  const { relief, about } = limitKinds[limit]
  const crowded =
    now < max
      ? `It is ${now} at present, because this server is short of time and the tenant does more than others. `
      : ''
  const message = `The limit ${limit} of this tenant is ${max}. ${crowded}${about} See GET /api/limits.`
  const detail = { limit, max }
  if (relief === 'held') return limitErrors.limitExceeded({ message, detail })
  const headers = { 'retry-after': String(retryAfterSeconds ?? 1) }
  return limitErrors.limitReached({ message, detail, headers })
}

/** The limits of a tenant that differ from the role file. */
export type OwnLimits = Partial<Limits>

/** The requests of a guarded scope. */
export interface GuardedRequests {
  /** The tenant of a request; called after the guard. */
  tenantOf(request: FastifyRequest): string
  /** The limit for requests that do more than read. Requests that only read count for `readsPerMinute`. */
  readonly writes: RequestLimit
  /** Counts requests in this process alone. Absent: all processes count together. */
  readonly alone?: Kv['hit']
}

/** The stored bytes of each tenant in the database. Writes add to them, and they are counted again every night. */
export interface StoredBytes {
  /** Adds bytes. The database is updated in the background. */
  add(tenantId: string, bytes: number): void
  /** True when the tenant has reached the limit. */
  isFull(tenantId: string): boolean
  /**
   * Throws 409 `limit_exceeded` when the tenant has reached the limit. `few`: a full tenant may make a few small writes, too, for each such name.
   */
  admit(tenantId: string, few?: string): void
}

export type CountUse = (tenantId: string) => Promise<number | undefined> | number | undefined

/**
 * Takes a tenant's next turn, or as many as its work costs, and resolves when the first of them has come, however long that takes; rejects when `signal`
 * aborts before.
 */
export type WaitForTurn = (tenantId: string, signal?: AbortSignal, turns?: number) => Promise<void>

/** The limits of each tenant. A change by an operator reaches every process within seconds. */
export interface TenantLimits {
  /** The limits in the role file. */
  readonly defaults: Limits
  of(tenantId: string): Limits
  ownOf(tenantId: string): OwnLimits
  /** Replaces limits of a tenant; null restores the role file's. False: there is no such tenant, or no database. */
  change(tenantId: string, wanted: Readonly<Partial<Record<LimitName, number | null>>>): Promise<boolean>
  /**
   * Resolves when it is the turn of work that costs as much as `weight` requests of a kind, in addition to its own request. Rejects with 429
   * `limit_reached` when the tenant's requests already wait as long as they may. With `patient`, which is for background work, it rejects only when
   * no turns exist at all.
   */
  turn(tenantId: string, kind: RequestLimit, weight: number, options?: { readonly patient?: boolean }): Promise<void>
  /**
   * Says that this process works for the tenant where nobody takes a turn, as at the start of a run that another process sends. Tenants that take more
   * turns than their neighbours give way while the process is short of time.
   */
  works(tenantId: string): void
  /** Turns of work that no request waits for, at the pace of the writes of its tenant and beside them: `atOnce` pass at once after a pause. */
  pace(atOnce: number): WaitForTurn
  /**
   * The same for work that has no end, such as schedules: turns are never ahead of the average. The function takes a tenant's next turn, and returns in
   * how many milliseconds it comes.
   */
  steady(atOnce: number): (tenantId: string) => number
  /** Whether this process knows that a request would be refused now. `writes`: see `GuardedRequests`. The call does no I/O and counts nothing. */
  isSpent(tenantId: string, method: string, writes: RequestLimit): boolean
  /** The bytes of a file, no faster than the tenant may transfer. */
  paced(tenantId: string, body: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array>
  /**
   * Counts bytes of an answer that this process holds, until the returned function is called. Returns the error when others of the tenant already
   * hold as much as they may together; a tenant may always have one. Answers that are sent in one piece are counted by `guard`.
   */
  holdAnswer(tenantId: string, bytes: number): (() => void) | AppError
  /** Enforces `storedBytes`. */
  readonly stored: StoredBytes
  /** Enforces the limits on requests and open streams in a scope. Call it after the scope's guard and before its routes. */
  guard(app: App, guarded: GuardedRequests): void
  /** Registers how much of a limit a tenant uses. A count of undefined means that it is unknown. */
  uses(limit: LimitName, count: CountUse): void
  /** The use of each counted limit by a tenant. */
  usedBy(tenantId: string): Promise<OwnLimits>
}
export const TenantLimits = capability<TenantLimits>('core.tenant-limits')
