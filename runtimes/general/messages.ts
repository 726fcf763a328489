import type {
  LanguageModelV4ReasoningPart,
  LanguageModelV4TextPart,
  LanguageModelV4ToolCallPart,
  LanguageModelV4ToolResultPart,
} from '@ai-sdk/provider'
import type { Attachment, PromptFields } from '#contracts/prompt'

export type TextPart = LanguageModelV4TextPart
export type ReasoningPart = LanguageModelV4ReasoningPart
export type ToolCall = LanguageModelV4ToolCallPart
export type ToolResult = LanguageModelV4ToolResultPart
/** An image or a file, inline. */
export interface FilePart {
  readonly type: 'file'
  readonly mediaType: string
  readonly filename?: string
  readonly data: { readonly type: 'data'; readonly data: string }
}

/** The messages this runtime makes and keeps: a subset of the provider specification, so that bundles can be checked. */
export type Message =
  | { readonly role: 'user'; readonly content: (TextPart | FilePart)[] }
  | { readonly role: 'assistant'; readonly content: (TextPart | ReasoningPart | ToolCall)[] }
  | { readonly role: 'tool'; readonly content: ToolResult[] }

export const textPart = (text: string): TextPart => ({ type: 'text', text })
export const userMessage = (text: string, files: readonly (TextPart | FilePart)[] = []): Message => ({
  role: 'user',
  content: [...files, textPart(text)],
})

/** Forms that every model can read as they are. */
const readable =
  /^text\/|^application\/(?:json|ndjson|x-ndjson|xml|yaml|x-yaml|toml|sql|javascript|csv)$|\+(?:json|xml|yaml)$/

/** What goes with a prompt, as parts of its message: text as text, so that any model can take it, all else as a file. */
export const attachmentParts = (attachments: readonly Attachment[] = []): (TextPart | FilePart)[] =>
  attachments.map(({ mediaType, data, name }) =>
    readable.test(mediaType)
      ? textPart(`File ${name ?? 'without a name'} (${mediaType}):\n${Buffer.from(data, 'base64').toString('utf8')}`)
      : { type: 'file', mediaType, data: { type: 'data', data }, ...(name === undefined ? {} : { filename: name }) },
  )

/** What a model said in one step; undefined when it only thought. */
export function assistantMessage(
  said: readonly (TextPart | ReasoningPart)[],
  calls: readonly ToolCall[],
): Message | undefined {
  if (calls.length === 0 && !said.some(({ type }) => type === 'text')) return undefined
  return { role: 'assistant', content: [...said, ...calls] }
}

export const toolResult = (call: ToolCall, ok: boolean, value: string): ToolResult => ({
  type: 'tool-result',
  toolCallId: call.toolCallId,
  toolName: call.toolName,
  output: { type: ok ? 'text' : 'error-text', value },
})

/** What one run adds to the conversation. */
export class OpenTurn {
  /** Text of the step under way. */
  text = ''
  readonly #messages: Message[]
  #said: (TextPart | ReasoningPart)[] = []
  /** How much of the step's text stands in `#said` already. */
  #placed = 0
  #refused: { readonly from: number; readonly count: number } | undefined

  constructor({ prompt, attachments }: { readonly prompt: string } & PromptFields) {
    this.#messages = [userMessage(prompt, attachmentParts(attachments))]
  }

  get messages(): readonly Message[] {
    return this.#messages
  }

  /** The model thinks, behind what it has said in this step so far. The part may still grow. */
  thinks(part: ReasoningPart): void {
    this.#place()
    this.#said.push(part)
  }

  /** The step under way is complete. */
  says(calls: readonly ToolCall[]): void {
    this.#place()
    const message = assistantMessage(this.#said, calls)
    if (message) this.#messages.push(message)
    this.text = ''
    this.#said = []
    this.#placed = 0
  }

  #place(): void {
    if (this.text.length > this.#placed) this.#said.push(textPart(this.text.slice(this.#placed)))
    this.#placed = this.text.length
  }

  hears(call: ToolCall, ok: boolean, content: string): void {
    const result = toolResult(call, ok, content)
    const last = this.#messages.at(-1)
    if (last?.role === 'tool') last.content.push(result)
    else this.#messages.push({ role: 'tool', content: [result] })
  }

  /** Images that came with results: most model servers take them from a user only. */
  sees(images: readonly FilePart[]): void {
    this.#messages.push(userMessage('These images are what the tools above returned.', images))
  }

  /** The answer of the step does not do: the model is told so. */
  complains(sentence: string): void {
    const from = this.#messages.length
    this.says([])
    this.#messages.push(userMessage(sentence))
    this.#refused = { from, count: this.#messages.length - from }
  }

  /** Leaves out an answer that did not do, and what was said about it. */
  forgives(): void {
    if (this.#refused) this.#messages.splice(this.#refused.from, this.#refused.count)
    this.#refused = undefined
  }

  /** All of it, once the run is over. Undefined: the model said nothing. */
  end(): readonly Message[] | undefined {
    this.forgives()
    this.says([])
    return this.#messages.length > 1 ? this.#messages : undefined
  }
}

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

/** Reasoning that no vendor has signed is nothing to any model later; signed, it belongs to the model that thought it. */
export function withoutReasoning(messages: readonly Message[], keep: 'signed' | 'none'): readonly Message[] {
  const goes = (part: { type: string; providerOptions?: unknown }): boolean =>
    part.type === 'reasoning' && (keep === 'none' || part.providerOptions === undefined)
  if (!messages.some(({ role, content }) => role === 'assistant' && content.some(goes))) return messages
  return messages.map((message) =>
    message.role === 'assistant'
      ? { ...message, content: joined(message.content.filter((part) => !goes(part))) }
      : message,
  )
}

/** Texts that a thought stood between become one. */
function joined<T extends { type: string }>(parts: readonly (T | TextPart)[]): (T | TextPart)[] {
  const out: (T | TextPart)[] = []
  for (const part of parts) {
    const last = out.at(-1)
    if (isText(part) && last && isText(last)) out[out.length - 1] = textPart(last.text + part.text)
    else out.push(part)
  }
  return out
}
const isText = (part: { type: string }): part is TextPart => part.type === 'text'

/** The same messages with a word in the place of each image and file. */
export function withoutFiles(messages: readonly Message[]): readonly Message[] {
  return messages.map((message) =>
    message.role === 'user'
      ? { ...message, content: message.content.map((part) => (part.type === 'file' ? textPart(wordFor(part)) : part)) }
      : message,
  )
}
const wordFor = ({ mediaType }: FilePart): string => (mediaType.startsWith('image/') ? '[image]' : '[file]')

/** Characters of text a message holds, for the bounds of the history. */
export function sizeOf(message: Message): number {
  let size = 0
  for (const part of message.content) {
    if (part.type === 'text') size += part.text.length
    else if (part.type === 'reasoning') size += part.text.length + signatureSize(part)
    else if (part.type === 'tool-call') size += JSON.stringify(part.input).length + part.toolName.length
    else if (part.type === 'tool-result' && 'value' in part.output) size += String(part.output.value).length
  }
  return size
}
const signatureSize = ({ providerOptions }: ReasoningPart): number =>
  providerOptions ? JSON.stringify(providerOptions).length : 0

/** Characters of base64 a message holds: images and files. */
export function fileSizeOf(message: Message): number {
  if (message.role !== 'user') return 0
  return message.content.reduce((sum, part) => (part.type === 'file' ? sum + part.data.data.length : sum), 0)
}
