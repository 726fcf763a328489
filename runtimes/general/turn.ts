import type { PromptFields } from '#contracts/prompt'
import type { Replay } from '#contracts/replay'
import { type PendingCall, replayedCall } from './calls.ts'
import {
  assistantMessage,
  attachmentParts,
  type FilePart,
  type Message,
  type ReasoningPart,
  type TextPart,
  textPart,
  type ToolCall,
  toolResult,
  userMessage,
} from './messages.ts'

/** What one run adds to the conversation. */
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
  /** All of it, once the run is over. Undefined: the model said nothing. */
  end(): readonly Message[] | undefined
}

export function openTurn(run: { readonly prompt: string } & PromptFields): OpenTurn {
  const messages: Message[] = [userMessage(run.prompt, attachmentParts(run.attachments))]
  let said: (TextPart | ReasoningPart)[] = []
  /** How much of the step's text stands in `said` already. */
  let placed = 0
  let refused: { readonly from: number; readonly count: number } | undefined
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
    end() {
      this.forgives()
      this.says([])
      return messages.length > 1 ? messages : undefined
    },
  }
}

/** What a former attempt leaves this one to do. */
export interface Replayed {
  /** Model calls that are finished. */
  readonly steps: number
  /** What the run has said in them. */
  readonly answer: string
  /** Calls of the last step that have no result: they are executed, maybe once more. */
  readonly open: readonly PendingCall[]
}

/** The texts of two steps are paragraphs of one answer. */
export const paragraph = '\n\n'

/** Fills the turn with what its log says. A step is text, then calls, then their results. */
export function replayInto(turn: OpenTurn, replay: Replay): Replayed {
  let steps = 0
  let answer = ''
  let asked: PendingCall[] = []
  let open: PendingCall[] = []
  const say = (): void => {
    if (asked.length === 0) return
    steps++
    turn.says(asked.map(({ part }) => part))
    open = asked
    asked = []
  }
  for (const event of replay) {
    if (event.type === 'assistant') {
      say()
      const { text } = event
      const begins = answer !== '' && turn.text === '' && text.startsWith(paragraph)
      turn.text += begins ? text.slice(paragraph.length) : text
      answer += text
    } else if (event.type === 'tool_call') {
      asked.push(replayedCall(event.id, event.name, event.arguments))
    } else {
      say()
      const index = open.findIndex(({ part }) => part.toolCallId === event.id && part.toolName === event.name)
      if (index < 0) continue
      turn.hears(open[index]!.part, event.ok, event.content)
      open = open.toSpliced(index, 1)
    }
  }
  say()
  return { steps, answer, open }
}
