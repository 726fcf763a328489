import { slot } from '../plugin.ts'
import type { DelegationAnswer } from './delegation.ts'
import type { Profile } from './profiles.ts'

/** The caller of a tool. Every field comes from the conductor's own record of the run. */
export interface ConductorCaller {
  readonly tenantId: string
  readonly sessionId: string
  readonly runId: string
  /** The profile snapshot of the session. */
  readonly profile: Profile
  /** The end user of the run. Undefined: none is named. */
  readonly endUserId: string | undefined
  /** The run answers a visitor of a published agent, or was delegated by such a run. `endUserId` is then what the visitor claims. */
  readonly visitor?: true
  /** Aborts when the run is over. */
  readonly signal: AbortSignal
}

/** The conductor's part of a platform tool, for data that only conductors have. A throw becomes `{ok: false}` with a plain sentence. */
export interface ConductorTool {
  execute(input: Readonly<Record<string, unknown>>, caller: ConductorCaller): Promise<DelegationAnswer>
}

/** Keyed by tool name. */
export const ConductorTools = slot<ConductorTool>('conductor.tools')
