import type { Static } from '@sinclair/typebox'
import { capability, slot } from '../plugin.ts'
import type { Delegations } from './delegation.ts'
import type { Limits } from './limits.ts'
import type { ProgressEvent } from './run-event.ts'
import type { SessionVfs } from './session-vfs.ts'
import type { SkillContent } from './skills.ts'

/** The caller of a tool. It comes from the runner's own records: a model cannot choose any of it. */
export interface ToolContext {
  readonly tenantId: string
  readonly sessionId: string
  readonly profileName: string
  /** The run under way in the session; '' when the tool is invoked outside one. */
  readonly runId: string
  /** How many delegations led here; 0 for a run submitted by a client. */
  readonly depth: number
  readonly signal: AbortSignal
  /**
   * Names one call: the same whenever it is executed again because the run was tried again before its result was known. A
   * tool whose effect must not happen twice passes it on. Absent when the runtime does not name its calls.
   */
  readonly idempotencyKey?: string
  /** Limits of its tenant, as the conductor of the run sent them; absent if it sent none. */
  readonly limits?: ToolLimits
  /** The skills of the session, in the versions that it keeps. Absent when it has none. */
  readonly skills?: readonly SkillContent[]
  /** Writes a `progress` event into the log of the run, where its readers see it. Absent outside a run. */
  readonly report?: (event: Static<typeof ProgressEvent>) => void
  /** The sandbox of the session, started when it is used first; absent when its profile has none. */
  readonly sandbox?: SessionSandbox
  /** Has the conductor's part of this tool execute the call. Absent outside a run, where no conductor listens. */
  readonly askConductor?: (input: Readonly<Record<string, unknown>>) => Promise<ToolResult>
  /** The VirtualFS as the session sees it; absent when its profile does not use it, or the runner has none. */
  readonly vfs?: SessionVfs
}

/** Limits of a tenant that tools must respect. */
export type ToolLimits = Partial<Pick<Limits, 'objects' | 'objectBytes'>>

/** Executes a tool of the worker inside a session's sandbox. */
export interface SessionSandbox {
  /** Never rejects for the tool's own failure, nor for a sandbox that does not start. */
  call(name: string, input: Readonly<Record<string, unknown>>, timeoutMs: number): Promise<ToolResult>
  /**
   * Brings what the programs of a runtime in there have written to the VirtualFS, and what is new there into the sandbox. Tools of the
   * worker need no such call. Returns a sentence about changes that could not be kept.
   */
  settleFiles(): Promise<string | undefined>
}

/** A call from outside a run. `callId` names it to the tool, as its idempotency key. */
export interface ToolInvocation {
  readonly name: string
  readonly input: unknown
  readonly callId?: string
}

export interface ToolResult {
  readonly ok: boolean
  readonly content: string
}

/** A JSON Schema object. */
export type JsonSchema = Readonly<Record<string, unknown>>

export interface ToolSpec {
  readonly name: string
  readonly description: string
  readonly inputSchema: JsonSchema
}

/** A tool of the platform, executed in the runner on behalf of a session. A throw becomes `{ok: false}` with a plain sentence. */
export interface PlatformTool extends ToolSpec {
  /** Longest a call may take, for tools that are slow by nature; the toolkit's own limit by default. */
  readonly timeoutMs?: number
  /** Loads in advance what its first call needs: see `loads` of `PluginContext`. */
  load?(): Promise<unknown>
  /** `input` already satisfies `inputSchema`. */
  execute(input: Readonly<Record<string, unknown>>, context: ToolContext): Promise<ToolResult>
}

/** In the `_meta` of an MCP `tools/call`: the id that the call has in the run's `tool_call` event. */
export const callIdMeta = 'agent-orc/call-id'

/** Keyed by tool name. */
export const PlatformTools = slot<PlatformTool>('runner.tools')

/** Every platform tool of this runner, validated and bounded in time and output. */
export interface Toolkit {
  /** Returns all tools, or those of `names` that exist, sorted by name. */
  specs(names?: readonly string[]): ToolSpec[]
  /** The waiting calls of the tool `delegate`. */
  readonly delegations: Delegations
  /** Never rejects for a tool's own failure. An unknown tool or input against its schema is `{ok: false}`. */
  invoke(name: string, input: unknown, context: ToolContext): Promise<ToolResult>
}
export const Toolkit = capability<Toolkit>('runner.toolkit')
