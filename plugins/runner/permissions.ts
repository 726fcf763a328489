import { createHash } from 'node:crypto'
import { approvalIdOf, approvalStage, type CallDecision, needsApproval, rejection } from '#contracts/approvals'
import type { Delegations } from '#contracts/delegation'
import type { ExecuteRun, RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { ToolContext, ToolResult } from '#contracts/tools'

/** People's decisions on the calls of one attempt of a run. */
export class Permissions {
  readonly #decided: Readonly<Record<string, CallDecision>>
  readonly #counts = new Map<string, number>()
  /** Keys of calls with ids that were allowed in this attempt. */
  readonly #used = new Set<string>()
  constructor(decided: ExecuteRun['decided'] = {}) {
    this.#decided = decided
  }

  /**
   * A key that names the same call in every attempt: its id together with what is called. If the runtime gives no id, the key is what is called and
   * how often that was called before, because a second transfer of the same sum is another call. A worker in a sandbox chooses its ids itself, so
   * an allowed id permits neither other arguments nor a second call.
   */
  keyOf({ name, input, callId }: Call): string {
    const call = callOf(name, input)
    if (callId !== undefined) {
      const named = `${callId}:${call}`
      let key = named
      for (let count = 2; this.#used.has(key); count++) key = `${named}-${count}`
      return key
    }
    const count = (this.#counts.get(call) ?? 0) + 1
    this.#counts.set(call, count)
    return `${call}-${count}`
  }
  use(key: string): void {
    this.#used.add(key)
  }
  of(key: string): CallDecision | undefined {
    return Object.hasOwn(this.#decided, key) ? this.#decided[key] : undefined
  }
}

interface Call {
  readonly name: string
  readonly input: unknown
  readonly callId: string | undefined
}
interface RunThatAsks {
  readonly runId: string
  /** Undefined when no call of the profile needs an approval. */
  readonly permissions: Permissions | undefined
  readonly report: NonNullable<ToolContext['report']>
}
interface Caller {
  readonly session: RunnerSession
  readonly run: RunThatAsks | undefined
  readonly signal: AbortSignal
}

/**
 * The refusal of a call that may not be made. Undefined: the call may be made. An undecided call waits here until its conductor has the decision,
 * or parks the run until there is one.
 */
export async function refusalOf(
  delegations: Pick<Delegations, 'call'>,
  { session, run, signal }: Caller,
  call: Call,
): Promise<ToolResult | undefined> {
  if (!needsApproval(session.profile, call.name)) return undefined
  // Nobody would be asked about the call.
  if (!run?.permissions)
    return { ok: false, content: `'${call.name}' needs an approval, for which only calls of a run can wait.` }
  const key = run.permissions.keyOf(call)
  const decided = run.permissions.of(key)
  if (decided) {
    if (!decided.approved) return { ok: false, content: rejection(call.name, decided) }
    run.permissions.use(key)
    return undefined
  }
  const { name, input, callId } = call
  const approval = { key, tool: name, arguments: input, ...(callId === undefined ? {} : { callId }) }
  const of = { tenantId: session.tenantId, sessionId: session.id, signal }
  const answer = delegations.call(of, { id: `${run.runId}:approval:${key}`, parentRunId: run.runId, approval })
  run.report({
    type: 'progress',
    stage: approvalStage,
    message: `'${name}' waits for an approval.`,
    approval: { approvalId: approvalIdOf(run.runId, key), id: callId ?? key, name },
  })
  const { ok, content } = await answer
  if (!ok) return { ok, content }
  run.permissions.use(key)
  return undefined
}

/** Does the same for a call that a runtime makes by itself, of a tool of an MCP server. The runtime asks before the call. */
export async function askFor(
  delegations: Pick<Delegations, 'call'>,
  { callId, ...caller }: Caller & { readonly callId: string | undefined },
  input: unknown,
): Promise<ToolResult> {
  const { name, arguments: given } = (input ?? {}) as { name?: unknown; arguments?: unknown }
  if (typeof name !== 'string') throw runnerErrors.toolNotAllowed({ message: 'The name of the tool is missing.' })
  const refused = await refusalOf(delegations, caller, { name, input: given, callId })
  return refused ?? { ok: true, content: '' }
}

/** A text that is the same for equal calls. */
export const callOf = (name: string, input: unknown): string =>
  createHash('sha256')
    .update(JSON.stringify([name, sorted(input ?? {})]))
    .digest('base64')

/** Sorts the keys, so that the same arguments in another order compare as equal. */
const sorted = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, item]) => [key, sorted(item)]),
  )
}
