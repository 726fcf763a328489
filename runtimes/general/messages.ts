import type {
  LanguageModelV4TextPart,
  LanguageModelV4ToolCallPart,
  LanguageModelV4ToolResultPart,
} from '@ai-sdk/provider'

/** The messages this runtime makes and keeps: a subset of the provider specification, so that bundles can be checked. */
export type Message =
  | { readonly role: 'user'; readonly content: LanguageModelV4TextPart[] }
  | { readonly role: 'assistant'; readonly content: (LanguageModelV4TextPart | LanguageModelV4ToolCallPart)[] }
  | { readonly role: 'tool'; readonly content: LanguageModelV4ToolResultPart[] }
export type ToolCall = LanguageModelV4ToolCallPart
export type ToolResult = LanguageModelV4ToolResultPart

export const userMessage = (text: string): Message => ({ role: 'user', content: [{ type: 'text', text }] })

/** What a model said in one step; undefined when it said nothing. */
export function assistantMessage(text: string, calls: readonly ToolCall[]): Message | undefined {
  if (text === '' && calls.length === 0) return undefined
  return { role: 'assistant', content: [...(text === '' ? [] : [{ type: 'text' as const, text }]), ...calls] }
}

export const toolResult = (call: ToolCall, ok: boolean, value: string): ToolResult => ({
  type: 'tool-result',
  toolCallId: call.toolCallId,
  toolName: call.toolName,
  output: { type: ok ? 'text' : 'error-text', value },
})

/**
 * Makes a turn acceptable to every model server: each tool call is followed by exactly one result (an error when none
 * was kept), and results without a call are dropped. Specification 4.23.5.
 */
export function repaired(messages: readonly Message[]): Message[] {
  const out: Message[] = []
  for (let i = 0; i < messages.length; i++) {
    const message = messages[i]!
    if (message.role === 'tool') continue
    out.push(message)
    if (message.role !== 'assistant') continue
    const calls = message.content.filter((part) => part.type === 'tool-call')
    if (calls.length === 0) continue
    const results: ToolResult[] = []
    for (let next = messages[i + 1]; next?.role === 'tool'; next = messages[++i + 1]) results.push(...next.content)
    out.push({
      role: 'tool',
      content: calls.map(
        (call) =>
          results.find((result) => result.toolCallId === call.toolCallId) ??
          toolResult(call, false, 'The tool call was interrupted; its result is not known.'),
      ),
    })
  }
  return out
}

/** Characters a message holds, for the bounds of the history. */
export function sizeOf(message: Message): number {
  let size = 0
  for (const part of message.content) {
    if (part.type === 'text') size += part.text.length
    else if (part.type === 'tool-call') size += JSON.stringify(part.input).length + part.toolName.length
    else if ('value' in part.output) size += String(part.output.value).length
  }
  return size
}
