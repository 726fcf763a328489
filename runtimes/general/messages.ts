import type {
  LanguageModelV4ReasoningPart,
  LanguageModelV4TextPart,
  LanguageModelV4ToolCallPart,
  LanguageModelV4ToolResultPart,
} from '@ai-sdk/provider'
import type { ObjectLink } from '#contracts/linked-objects'
import { attachedText, type Attachment, fileTokens, type PromptFields } from '#contracts/prompt'

type TextPart = LanguageModelV4TextPart
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
/** A file part of a restored conversation. Its content is read before the next run. */
interface LinkedPart extends Pick<FilePart, 'type' | 'mediaType' | 'filename'> {
  readonly data: { readonly type: 'link'; readonly link: ObjectLink }
}

/** The messages this runtime makes and keeps: a subset of the provider specification, so that bundles can be checked. */
export type Message =
  | { readonly role: 'user'; readonly content: (TextPart | FilePart | LinkedPart)[] }
  | { readonly role: 'assistant'; readonly content: (TextPart | ReasoningPart | ToolCall)[] }
  | { readonly role: 'tool'; readonly content: ToolResult[] }

export const textPart = (text: string): TextPart => ({ type: 'text', text })
export const userMessage = (text: string, files: readonly (TextPart | FilePart | LinkedPart)[] = []): Message => ({
  role: 'user',
  content: [...files, textPart(text)],
})

/** Attachments as parts of the prompt's message. Text stays text, so that any model can read it; everything else becomes a file. */
const attachmentParts = (attachments: readonly Attachment[] = []): (TextPart | FilePart | LinkedPart)[] =>
  attachments.map((attachment) => {
    const { mediaType, data = '', link, name } = attachment
    const file = { type: 'file' as const, mediaType, ...(name === undefined ? {} : { filename: name }) }
    if (link) return { ...file, data: { type: 'link', link } }
    const text = attachedText({ ...attachment, data })
    return text === undefined ? { ...file, data: { type: 'data', data } } : textPart(text)
  })

const isLinked = (part: { readonly type: string; readonly data?: unknown }): part is LinkedPart =>
  part.type === 'file' && (part as FilePart | LinkedPart).data.type === 'link'

/** True when some content of the messages must still be read. */
export const haveLinks = (messages: readonly Message[]): boolean =>
  messages.some(({ role, content }) => role === 'user' && content.some(isLinked))

/** The messages with the contents that `read` returns. A note replaces missing content. */
export async function withContents(
  messages: readonly Message[],
  read: (link: ObjectLink) => Promise<Buffer | undefined>,
): Promise<readonly Message[]> {
  const whole: Message[] = []
  for (const message of messages) {
    if (message.role !== 'user' || !message.content.some(isLinked)) {
      whole.push(message)
      continue
    }
    const content: (TextPart | FilePart | LinkedPart)[] = []
    for (const part of message.content) {
      const bytes = isLinked(part) ? await read(part.data.link) : undefined
      if (!isLinked(part)) content.push(part)
      else if (!bytes) content.push(textPart(wordFor(part)))
      else {
        const { mediaType, filename: name } = part
        const attachment = { mediaType, data: bytes.toString('base64'), ...(name === undefined ? {} : { name }) }
        content.push(...attachmentParts([attachment]))
      }
    }
    whole.push({ ...message, content })
  }
  return whole
}

/** The message of one step. Undefined when the step has only reasoning. */
function assistantMessage(
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

/** Separates the texts of two steps, which are paragraphs of one answer. */
export const paragraph = '\n\n'

/** How many pieces of text are joined at once. A piece may be a slice of a far larger string, which V8 keeps alive with it. */
const piecesTogether = 32

/** The messages that one run adds to the conversation. */
export class OpenTurn {
  readonly #messages: Message[]
  /** The text of the current step, without its newest pieces. */
  #text = ''
  #pieces: string[] = []
  /** The texts of earlier steps. */
  #before = ''
  #parts: (TextPart | ReasoningPart)[] = []
  /** How many characters of the step's text are already in `#parts`. */
  #added = 0
  #refused: { readonly from: number; readonly count: number } | undefined

  constructor({ prompt, attachments }: { readonly prompt: string } & PromptFields) {
    this.#messages = [userMessage(prompt, attachmentParts(attachments))]
  }

  get messages(): readonly Message[] {
    return this.#messages
  }
  /** The text of the current step. */
  get text(): string {
    if (this.#pieces.length > 0) {
      this.#text += this.#pieces.join('')
      this.#pieces = []
    }
    return this.#text
  }
  /** True until the current step has text. */
  get silent(): boolean {
    return this.#text === '' && this.#pieces.length === 0
  }
  /** The text of the whole run. */
  get answer(): string {
    return this.#before + this.gap + this.text
  }
  /** The separator between the texts of earlier steps and the text of this step. */
  get gap(): string {
    return this.#before === '' || this.silent ? '' : paragraph
  }

  /** Adds pieces to the text of the current step. */
  say(pieces: readonly string[]): void {
    for (const piece of pieces) if (piece !== '') this.#pieces.push(piece)
    if (this.#pieces.length >= piecesTogether) void this.text
  }

  /** Adds reasoning after the step's text so far. The part may still grow. */
  addReasoning(part: ReasoningPart): void {
    this.#addText()
    this.#parts.push(part)
  }

  /** Completes the current step with its calls. */
  endStep(calls: readonly ToolCall[]): void {
    this.#addText()
    const message = assistantMessage(this.#parts, calls)
    if (message) this.#messages.push(message)
    this.#before = this.answer
    this.#text = ''
    this.#pieces = []
    this.#parts = []
    this.#added = 0
  }

  #addText(): void {
    const { text } = this
    if (text.length > this.#added) this.#parts.push(textPart(text.slice(this.#added)))
    this.#added = text.length
  }

  addResult(call: ToolCall, ok: boolean, content: string): void {
    const result = toolResult(call, ok, content)
    const last = this.#messages.at(-1)
    if (last?.role === 'tool') last.content.push(result)
    else this.#messages.push({ role: 'tool', content: [result] })
  }

  /** Adds the images of tool results as a user message, because most model servers accept images only from a user. */
  addImages(images: readonly FilePart[]): void {
    this.#messages.push(userMessage('The tools above returned these images.', images))
  }

  /** Replaces the messages so far by these, in which results are cut. */
  shorten(messages: readonly Message[]): void {
    this.#messages.splice(0, this.#messages.length, ...messages)
  }

  /** Refuses the step's answer, and tells the model why. */
  askForAnother(sentence: string): void {
    const from = this.#messages.length
    this.endStep([])
    this.#before = ''
    this.#messages.push(userMessage(sentence))
    this.#refused = { from, count: this.#messages.length - from }
  }

  /** Removes the refused answer and the sentence that refused it. */
  dropRefused(): void {
    if (this.#refused) this.#messages.splice(this.#refused.from, this.#refused.count)
    this.#refused = undefined
  }

  /** The messages of the whole run, once it is over. Undefined when the model wrote nothing. */
  end(): readonly Message[] | undefined {
    this.dropRefused()
    this.endStep([])
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

/** Leaves out reasoning. Unsigned reasoning is useless for later model calls; signed reasoning is useful only for the model that wrote it. */
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

/** Joins texts that were separated only by reasoning. */
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

/** The same messages, with a note instead of each image and file. */
export function withoutFiles(messages: readonly Message[]): readonly Message[] {
  return messages.map((message) =>
    message.role === 'user'
      ? { ...message, content: message.content.map((part) => (part.type === 'file' ? textPart(wordFor(part)) : part)) }
      : message,
  )
}
const wordFor = ({ mediaType }: Pick<FilePart, 'mediaType'>): string =>
  mediaType.startsWith('image/') ? '[image]' : '[file]'

/** The characters of text in a message, for the limits of the history. */
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

/** Characters of base64. For content that must still be read, the characters that it will have. */
const fileCharsOf = ({ data }: FilePart | LinkedPart): number =>
  data.type === 'data' ? data.data.length : Math.ceil(data.link.bytes / 3) * 4

/** The approximate tokens of a message's images and files. */
export function fileTokensOf({ role, content }: Message): number {
  let tokens = 0
  for (const part of role === 'user' ? content : [])
    if (part.type === 'file') tokens += fileTokens(part.mediaType, fileCharsOf(part))
  return tokens
}

/** The characters of base64 in a message's images and files. */
export function fileSizeOf(message: Message): number {
  if (message.role !== 'user') return 0
  return message.content.reduce((sum, part) => (part.type === 'file' ? sum + fileCharsOf(part) : sum), 0)
}
