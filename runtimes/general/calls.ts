import type { LanguageModelV4ToolCall } from '@ai-sdk/provider'
import { withoutCycles } from '#contracts/circular'
import type { Replay } from '#contracts/replay'
import { type OpenTurn, paragraph, type ToolCall } from './messages.ts'
import { failed, type ToolOutcome, unknownTool } from './tools/outcome.ts'
import type { ToolSet } from './tools/toolset.ts'

/** A tool call of the model that has not been executed yet. */
export interface PendingCall {
  /** The call in the form of the history. */
  readonly part: ToolCall
  /** The tool that is executed. For `call_tool` it is the tool that the call names. */
  readonly name: string
  /** The arguments in the `tool_call` event: the model's own text when they are no JSON object. */
  readonly shown: unknown
  readonly input: Readonly<Record<string, unknown>> | undefined
}

export function pendingCall(
  { toolName, input: given, providerMetadata }: LanguageModelV4ToolCall,
  toolCallId: string,
  tools: Pick<ToolSet, 'target'> | undefined,
): PendingCall {
  const input = argumentsOf(given)
  const part: ToolCall = {
    type: 'tool-call',
    toolCallId,
    toolName,
    // Model servers refuse a history in which arguments are not an object.
    input: input ?? {},
    // Some vendors sign their calls and require the signature later.
    ...(providerMetadata ? { providerOptions: withoutCycles(providerMetadata) as typeof providerMetadata } : {}),
  }
  const call = { name: toolName, input }
  const meant = tools?.target(call) ?? call
  return { part, name: meant.name, shown: meant.input ?? input ?? given, input: meant.input }
}

/** Makes the ids of one run's calls unique. Some model servers count from 0 in every answer, and tools distinguish calls by their ids. */
export function createCallIds(taken: Iterable<string>): (id: string) => string {
  const used = new Set(taken)
  return (id) => {
    let unique = id
    for (let n = 2; used.has(unique); n++) unique = `${id}_${n}`
    used.add(unique)
    return unique
  }
}

/** A call from the log of an earlier attempt. */
function replayedCall(toolCallId: string, toolName: string, shown: unknown): PendingCall {
  const input = argumentsOf(shown)
  return { part: { type: 'tool-call', toolCallId, toolName, input: input ?? {} }, name: toolName, shown, input }
}

/** Undefined when the arguments are not a JSON object. Their type says text, but some providers pass objects. */
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

/** Executes a call. Never rejects: a failure is a result for the model. */
export async function execute(tools: ToolSet | undefined, { part, name, input }: PendingCall): Promise<ToolOutcome> {
  if (input === undefined) return failed('The arguments of the call are not a JSON object.')
  return tools ? tools.call(name, input, part.toolCallId) : unknownTool(name)
}

/** What an earlier attempt has done, and what remains for this attempt. */
interface Replayed {
  /** How many model calls are finished. */
  readonly steps: number
  /** Calls of the last step without a result. They are executed, possibly a second time. */
  readonly open: readonly PendingCall[]
}

/** Fills the turn from its log. A step is text, then calls, then their results. */
export function replayInto(turn: OpenTurn, replay: Replay): Replayed {
  let steps = 0
  let asked: PendingCall[] = []
  let open: PendingCall[] = []
  const say = (): void => {
    if (asked.length === 0) return
    steps++
    turn.endStep(asked.map(({ part }) => part))
    open = asked
    asked = []
  }
  for (const event of replay) {
    if (event.type === 'assistant') {
      say()
      const { text } = event
      const begins = turn.silent && turn.answer !== '' && text.startsWith(paragraph)
      turn.say([begins ? text.slice(paragraph.length) : text])
    } else if (event.type === 'tool_call') {
      asked.push(replayedCall(event.id, event.name, event.arguments))
    } else {
      say()
      const index = open.findIndex(({ part }) => part.toolCallId === event.id && part.toolName === event.name)
      if (index < 0) continue
      turn.addResult(open[index]!.part, event.ok, event.content)
      open = open.toSpliced(index, 1)
    }
  }
  say()
  return { steps, open }
}
