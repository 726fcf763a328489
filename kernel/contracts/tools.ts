import type { Static } from '@sinclair/typebox'
import { capability, slot } from '../plugin.ts'
import type { Delegations } from './delegation.ts'
import type { Limits } from './limits.ts'
import type { ProgressEvent } from './run-event.ts'
import type { SessionVfs } from './session-vfs.ts'
import type { SkillContent } from './skills.ts'

/** The caller of a tool. Every field comes from the runner's own records, so a model cannot choose any of it. */
export interface ToolContext {
  readonly tenantId: string
  readonly sessionId: string
  readonly profileName: string
  /** The current run of the session; empty when the tool is called outside a run. */
  readonly runId: string
  /** The number of delegations that led here; 0 for a run submitted by a client. */
  readonly depth: number
  readonly signal: AbortSignal
  /**
   * Names one call. It is the same when the call is executed again because the run was retried before the result was known. A tool whose effect
   * must happen at most once passes it on. Absent when the runtime does not name its calls.
   */
  readonly idempotencyKey?: string
  /** The tenant's limits, as the conductor of the run sent them. Absent if it sent none. */
  readonly limits?: ToolLimits
  /** The skills of the session, in the versions that it keeps. Absent when it has none. */
  readonly skills?: readonly SkillContent[]
  /** Writes a `progress` event into the log of the run, for its readers. Absent outside a run. */
  readonly report?: (event: Static<typeof ProgressEvent>) => void
  /** The sandbox of the session, which starts on first use. Absent when the profile has none. */
  readonly sandbox?: SessionSandbox
  /** Has the conductor's part of this tool execute the call. Absent outside a run, where no conductor listens. */
  readonly askConductor?: (input: Readonly<Record<string, unknown>>) => Promise<ToolResult>
  /** The VirtualFS as the session sees it. Absent when the profile does not use it, or when the runner has none. */
  readonly vfs?: SessionVfs
}

/** Limits of a tenant that tools must respect. */
export type ToolLimits = Partial<Pick<Limits, 'objects' | 'objectBytes'>>

/** Executes a tool of the worker inside a session's sandbox. */
export interface SessionSandbox {
  /** Never rejects for a failure of the tool itself, nor for a sandbox that does not start. */
  call(name: string, input: Readonly<Record<string, unknown>>, timeoutMs: number): Promise<ToolResult>
  /**
   * Synchronizes files in both directions: brings what a runtime's programs wrote in the sandbox to the VirtualFS, and changes there into the
   * sandbox. The worker's own tools do not need this call. Returns a sentence about changes that could not be kept.
   */
  settleFiles(): Promise<string | undefined>
}

/** A call from outside a run. `callId` becomes the tool's idempotency key. */
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

/** A platform tool, which the runner executes on behalf of a session. An exception becomes `{ok: false}` with a plain sentence. */
export interface PlatformTool extends ToolSpec {
  /** The time limit of a call in milliseconds, for tools that are slow by nature. Absent: the toolkit's own limit. */
  readonly timeoutMs?: number
  /** Loads in advance what the tool's first call needs: see `loads` of `PluginContext`. */
  load?(): Promise<unknown>
  /** `input` already satisfies `inputSchema`. */
  execute(input: Readonly<Record<string, unknown>>, context: ToolContext): Promise<ToolResult>
}

/** In the `_meta` of an MCP `tools/call`: the call's id in the run's `tool_call` event. */
export const callIdMeta = 'agent-orc/call-id'

/** Keyed by tool name. */
export const PlatformTools = slot<PlatformTool>('runner.tools')

/** All platform tools of this runner. Calls are validated, and limited in time and output. */
export interface Toolkit {
  /** Returns all tools, or those of `names` that exist, sorted by name. */
  specs(names?: readonly string[]): ToolSpec[]
  /** The tool calls that wait for a conductor. */
  readonly delegations: Delegations
  /** Never rejects for a failure of the tool itself. An unknown tool, or input that violates its schema, is `{ok: false}`. */
  invoke(name: string, input: unknown, context: ToolContext): Promise<ToolResult>
}
export const Toolkit = capability<Toolkit>('runner.toolkit')
