import type { LanguageModelV4ToolCall } from '@ai-sdk/provider'
import { withoutCycles } from '#contracts/circular'
import type { ToolCall } from './messages.ts'
import type { SessionTools, ToolOutcome } from './tools.ts'

/** A tool call that the model asked for and that nobody has executed yet. */
export interface PendingCall {
  /** As the history keeps it. */
  readonly part: ToolCall
  /** What the `tool_call` event shows: the model's own text when it is no JSON object. */
  readonly shown: unknown
  readonly input: Readonly<Record<string, unknown>> | undefined
}

export function pendingCall(
  { toolName, input: given, providerMetadata }: LanguageModelV4ToolCall,
  toolCallId: string,
): PendingCall {
  const input = argumentsOf(given)
  const part: ToolCall = {
    type: 'tool-call',
    toolCallId,
    toolName,
    // Model servers refuse a history whose arguments are not an object.
    input: input ?? {},
    // Some vendors sign their calls and want the signature back.
    ...(providerMetadata ? { providerOptions: withoutCycles(providerMetadata) as typeof providerMetadata } : {}),
  }
  return { part, shown: input ?? given, input }
}

/** Makes the ids of one run's calls differ: some model servers count from 0 in every answer, and tools tell calls apart by them. */
export function createCallIds(taken: Iterable<string>): (id: string) => string {
  const used = new Set(taken)
  return (id) => {
    let unique = id
    for (let n = 2; used.has(unique); n++) unique = `${id}_${n}`
    used.add(unique)
    return unique
  }
}

/** A call as an earlier attempt showed it. */
export function replayedCall(toolCallId: string, toolName: string, shown: unknown): PendingCall {
  const input = argumentsOf(shown)
  return { part: { type: 'tool-call', toolCallId, toolName, input: input ?? {} }, shown, input }
}

/** Undefined when they are not a JSON object. The type says text; providers written elsewhere hand over objects too. */
function argumentsOf(given: unknown): Record<string, unknown> | undefined {
  let value = given
  if (typeof given === 'string') {
    try {
      value = given.trim() === '' ? {} : JSON.parse(given)
    } catch {
      return undefined
    }
  }
  const plain = withoutCycles(value)
  return typeof plain === 'object' && plain !== null && !Array.isArray(plain)
    ? (plain as Record<string, unknown>)
    : undefined
}

/** Never rejects: a failing tool is something the model is told. */
export async function execute(tools: SessionTools | undefined, { part, input }: PendingCall): Promise<ToolOutcome> {
  if (input === undefined) return { ok: false, content: 'The arguments of the call are not a JSON object.' }
  if (!tools) return { ok: false, content: `There is no tool '${part.toolName}'.` }
  return tools.call(part.toolName, input, part.toolCallId)
}
