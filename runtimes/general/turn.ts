import type { RunEnvelope } from '#contracts/run-envelope'
import { attachmentParts } from './attachments.ts'
import type { History } from './history.ts'
import {
  assistantMessage,
  type FilePart,
  type Message,
  type ReasoningPart,
  type TextPart,
  textPart,
  type ToolCall,
  toolResult,
  userMessage,
} from './messages.ts'

/** What one run adds to the conversation. Committed exactly once, and only when the model said something. */
export interface OpenTurn {
  readonly messages: readonly Message[]
  /** Text of the step under way. */
  text: string
  /** The model thinks, behind what it has said in this step so far. The part may still grow. */
  thinks(part: ReasoningPart): void
  /** The step under way is complete. */
  says(calls: readonly ToolCall[]): void
  hears(call: ToolCall, ok: boolean, content: string): void
  /** Images that came with results: most model servers take them from a user only. */
  sees(images: readonly FilePart[]): void
  /** The answer of the step does not do: the model is told so. */
  complains(sentence: string): void
  /** Leaves out an answer that did not do, and what was said about it. */
  forgives(): void
  commit(): void
}

export function openTurn(history: History, { sessionId, runId, profile, ...run }: RunEnvelope): OpenTurn {
  const messages: Message[] = [userMessage(run.prompt, attachmentParts(run.attachments))]
  let said: (TextPart | ReasoningPart)[] = []
  /** How much of the step's text stands in `said` already. */
  let placed = 0
  let refused: { readonly from: number; readonly count: number } | undefined
  let committed = false
  return {
    messages,
    text: '',
    thinks(part) {
      if (this.text.length > placed) said.push(textPart(this.text.slice(placed)))
      placed = this.text.length
      said.push(part)
    },
    says(calls) {
      if (this.text.length > placed) said.push(textPart(this.text.slice(placed)))
      const message = assistantMessage(said, calls)
      if (message) messages.push(message)
      this.text = ''
      said = []
      placed = 0
    },
    hears(call, ok, content) {
      const result = toolResult(call, ok, content)
      const last = messages.at(-1)
      if (last?.role === 'tool') last.content.push(result)
      else messages.push({ role: 'tool', content: [result] })
    },
    sees(images) {
      messages.push(userMessage('These images are what the tools above returned.', images))
    },
    complains(sentence) {
      const from = messages.length
      this.says([])
      messages.push(userMessage(sentence))
      refused = { from, count: messages.length - from }
    },
    forgives() {
      if (refused) messages.splice(refused.from, refused.count)
      refused = undefined
    },
    commit() {
      if (committed) return
      committed = true
      this.says([])
      if (messages.length > 1) history.append(sessionId, messages, { runId, model: profile.model })
    },
  }
}
