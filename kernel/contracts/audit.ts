import { access } from '../http/access.ts'
import { capability } from '../plugin.ts'

/** An administrator's write, recorded before anything is done. It never holds a body or a secret. */
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
  /** The target of the write, if the path names one. The id of a created thing is known only afterwards. */
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
  /** What the write did, such as how many rows an erasure deleted. Never content. */
  readonly detail?: Readonly<Record<string, unknown>>
}

/** The record of administrative writes. It is append-only and written in two steps, so that a crash cannot hide a write. */
export interface AuditTrail {
  /** Resolves to the entry once it is durable. Rejects with `unavailable` (503) otherwise, and the write must not be done. */
  begin(write: AuditedWrite): Promise<AuditEntry>
  /** Adds the outcome. Never rejects, because the write is already done: an entry without an outcome says that the write may have happened. */
  end(entry: AuditEntry, outcome: AuditOutcome): Promise<void>
}
export interface AuditEntry {
  readonly tenantId: string
  readonly id: string
}

/** The log itself, for writes without a request. */
export const AuditLog = capability<AuditTrail>('conductor.audit-log')

/** Provided by the guard of the public listener, so that every protected route is audited without code of its own. */
export interface AuditedWrites {
  /**
   * Sets the trail. Call it in setup, before any route is mounted. The trail cannot be a dependency of the guard, because the trail's own route
   * needs the guard.
   */
  recordOn(trail: AuditTrail): void
}
export const AuditedWrites = capability<AuditedWrites>('conductor.audited-writes')

/**
 * `access`, with a name for the action where method and path make a poor one. A route that members may call is audited only
 * when it has such a name. `proof`: the answer is the proof of an erasure and has no content, so the entry gets it as its detail.
 */
export const auditedAccess = (
  who: string,
  action: string,
  { proof = false }: { readonly proof?: boolean } = {},
): ReturnType<typeof access> => ({
  config: { ...access(who).config, action, proof } as ReturnType<typeof access>['config'],
})

/** The action that a route declared with `auditedAccess`. */
export const declaredAction = (config: unknown): string | undefined => {
  const action = (config as { action?: unknown } | undefined)?.action
  return typeof action === 'string' ? action : undefined
}

/** Whether the answer of a route is a proof. */
export const isProof = (config: unknown): boolean => (config as { proof?: unknown } | undefined)?.proof === true
