import type { History } from './history.ts'
import { assistantMessage, type Message, type ToolCall, toolResult, userMessage } from './messages.ts'

/** What one run adds to the conversation. Committed exactly once, and only when the model said something. */
export interface OpenTurn {
  readonly messages: readonly Message[]
  /** Text of the step under way. */
  text: string
  /** The step under way is complete. */
  says(calls: readonly ToolCall[]): void
  hears(call: ToolCall, ok: boolean, content: string): void
  commit(): void
}

export function openTurn(history: History, sessionId: string, runId: string, prompt: string): OpenTurn {
  const messages: Message[] = [userMessage(prompt)]
  let committed = false
  return {
    messages,
    text: '',
    says(calls) {
      const message = assistantMessage(this.text, calls)
      if (message) messages.push(message)
      this.text = ''
    },
    hears(call, ok, content) {
      const result = toolResult(call, ok, content)
      const last = messages.at(-1)
      if (last?.role === 'tool') last.content.push(result)
      else messages.push({ role: 'tool', content: [result] })
    },
    commit() {
      if (committed) return
      committed = true
      this.says([])
      if (messages.length > 1) history.append(sessionId, messages, runId)
    },
  }
}
