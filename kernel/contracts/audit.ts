import { access } from '../http/access.ts'
import { capability } from '../plugin.ts'

/** A write of an administrator, as it is put on record before anything is done. Never a body, never a secret. */
export interface AuditedWrite {
  readonly tenantId: string
  readonly actor: {
    /** `tak_…`, `bootstrap`, or the name of a command. */
    readonly keyId: string
    /** The role of the key; `operator` for a command, which acts on the database itself. */
    readonly role: string
  }
  /** The action that was requested, e.g. `profiles.create`. */
  readonly action: string
  /** The thing it acts on, as far as the path names it. The id of a created thing is only known afterwards. */
  readonly target?: string
  /** Absent for a command. */
  readonly request?: {
    readonly method: string
    /** The path as it was sent, without the query. */
    readonly path: string
    readonly id: string
    readonly remoteAddress: string
  }
}

export interface AuditOutcome {
  /** The status of the HTTP answer, or the one that a command would have got. */
  readonly status: number
  /** The id of the thing that was created. */
  readonly target?: string
  /** The proof of an erasure, such as how many rows were deleted. Never content. */
  readonly detail?: Readonly<Record<string, unknown>>
}

/** The record of administrative writes. It only grows, and in two steps, so that no crash loses the trace of a write. */
export interface AuditTrail {
  /** Resolves to the entry once it is durable; rejects `unavailable` (503) when it cannot be: then the write must not be done. */
  begin(write: AuditedWrite): Promise<AuditEntry>
  /** Adds the outcome. Never rejects: the write is done, and an entry without an outcome says that it may have been. */
  end(entry: AuditEntry, outcome: AuditOutcome): Promise<void>
}
export interface AuditEntry {
  readonly tenantId: string
  readonly id: string
}

/** The log itself, for writes without a request. */
export const AuditLog = capability<AuditTrail>('conductor.audit-log')

/** Provided by the guard of the public listener, so that a route is audited because it is protected, without a line of its own. */
export interface AuditedWrites {
  /** Called in setup, before any route is mounted. Turned around like this because the trail's own route needs the guard. */
  recordOn(trail: AuditTrail): void
}
export const AuditedWrites = capability<AuditedWrites>('conductor.audited-writes')

/**
 * `access`, with a name for the action where method and path make a poor one. A route that members may call is audited only
 * when it has such a name.
 */
export const auditedAccess = (who: string, action: string): ReturnType<typeof access> => ({
  config: { ...access(who).config, action } as ReturnType<typeof access>['config'],
})

/** The action that a route declared with `auditedAccess`. */
export const declaredAction = (config: unknown): string | undefined => {
  const action = (config as { action?: unknown } | undefined)?.action
  return typeof action === 'string' ? action : undefined
}
