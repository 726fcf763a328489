import { slot } from '../plugin.ts'
import type { DelegationAnswer } from './delegation.ts'
import type { Profile } from './profiles.ts'

/** The caller of a tool. All of it comes from the conductor's own record of the run. */
export interface ConductorCaller {
  readonly tenantId: string
  readonly sessionId: string
  readonly runId: string
  /** The session's snapshot. */
  readonly profile: Profile
  /** The end user of the run, if one is named. */
  readonly endUserId: string | undefined
  /** The run answers a visitor of a published agent, or was delegated by one that does: `endUserId` is what that visitor says. */
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
