import {
  InvalidResponseDataError,
  type LanguageModelV4FinishReason,
  type LanguageModelV4StreamPart,
  type SharedV4Warning,
} from '@ai-sdk/provider'
import { type Static, Type } from '@sinclair/typebox'
import { TypeCompiler } from '@sinclair/typebox/compiler'
import { createParser } from 'eventsource-parser'
import { createToolCalls, ToolCallDelta, type ToolCalls } from './tool-calls.ts'

type Part = LanguageModelV4StreamPart

/** Reads one streamed answer: bytes in, parts of the provider specification out. */
export interface AnswerReader {
  read(arrived: readonly Uint8Array[]): readonly Part[]
  /** What is left to say behind the last byte. */
  end(): readonly Part[]
}

const maybe = <T extends Parameters<typeof Type.Optional>[0]>(schema: T) =>
  Type.Optional(Type.Union([schema, Type.Null()]))
const count = maybe(Type.Number())

/** What is read of a chunk. Servers add what they like; other values than these in its place make the chunk invalid. */
const Chunk = Type.Object({
  id: maybe(Type.String()),
  model: maybe(Type.String()),
  created: maybe(Type.Number()),
  choices: Type.Array(
    Type.Object({
      delta: maybe(
        Type.Object({
          // Text, or parts of it: some servers send what they think between them.
          content: maybe(Type.Union([Type.String(), Type.Array(Type.Object({ type: Type.String() }))])),
          // Servers send other things than a text here when nothing was refused.
          refusal: Type.Optional(Type.Unknown()),
          reasoning_content: maybe(Type.String()),
          reasoning: maybe(Type.String()),
          tool_calls: maybe(Type.Array(ToolCallDelta)),
        }),
      ),
      finish_reason: maybe(Type.String()),
    }),
  ),
  usage: maybe(
    Type.Object({
      prompt_tokens: count,
      completion_tokens: count,
      prompt_tokens_details: maybe(Type.Object({ cached_tokens: count })),
      completion_tokens_details: maybe(Type.Object({ reasoning_tokens: count })),
    }),
  ),
})
type Chunk = Static<typeof Chunk>
type Delta = NonNullable<Chunk['choices'][number]['delta']>

const textId = 'txt-0'
const reasoningId = 'reasoning-0'

/** Makes a reader for each answer; what they share is made once. */
export function createAnswers(): (warnings: readonly SharedV4Warning[]) => AnswerReader {
  const valid = TypeCompiler.Compile(Chunk)
  return (warnings) => new Reader((value) => valid.Check(value), warnings)
}

class Reader implements AnswerReader {
  readonly #valid: (value: unknown) => value is Chunk
  readonly #decoder = new TextDecoder()
  readonly #frames = createParser({ onEvent: ({ data }) => this.#frame(data) })
  readonly #like = new LikeFrames()
  #parts: Part[]
  #open: 'text' | 'reasoning' | undefined
  #named = false
  #refused = false
  #failed = false
  #finish: string | undefined
  #usage: Chunk['usage']
  #calls: ToolCalls | undefined

  constructor(valid: (value: unknown) => boolean, warnings: readonly SharedV4Warning[]) {
    this.#valid = valid as (value: unknown) => value is Chunk
    this.#parts = [{ type: 'stream-start', warnings: [...warnings] }]
  }

  read(arrived: readonly Uint8Array[]): readonly Part[] {
    for (const bytes of arrived) this.#frames.feed(this.#decoder.decode(bytes, { stream: true }))
    return this.#take()
  }

  end(): readonly Part[] {
    // A last frame without its empty line counts.
    this.#frames.feed(`${this.#decoder.decode()}\n\n`)
    this.#close()
    this.#sort((calls) => calls.end())
    if (this.#finish === undefined && !this.#failed) this.#fail('The answer ended without a finish reason.', undefined)
    this.#say({ type: 'finish', finishReason: this.#reason(), usage: usageOf(this.#usage) })
    return this.#take()
  }

  #frame(data: string): void {
    const text = this.#like.textOf(data)
    if (text !== undefined) return this.#text(text)
    if (data === '[DONE]') return
    let value: unknown
    try {
      value = JSON.parse(data)
    } catch {
      return this.#fail('A frame of the answer is not JSON.', data)
    }
    const { error } = (value ?? {}) as { error?: unknown }
    if (error !== undefined && error !== null) {
      this.#failed = true
      return this.#say({ type: 'error', error })
    }
    if (!this.#valid(value)) return this.#fail('A frame of the answer is not a chunk of a completion.', value)
    if (!this.#named) this.#name(value)
    if (value.usage) this.#usage = value.usage
    const choice = value.choices[0]
    if (!choice) return
    if (typeof choice.finish_reason === 'string') this.#finish = choice.finish_reason
    if (choice.delta) this.#delta(choice.delta)
    if (isTextAlone(value)) this.#like.learn(data, choice.delta!.content as string)
  }

  #delta(delta: Delta): void {
    const { content, refusal, tool_calls: calls } = delta
    const thought = delta.reasoning_content ?? delta.reasoning
    if (thought) this.#think(thought)
    if (typeof content === 'string') this.#text(content)
    else if (content) for (const part of content) this.#piece(part)
    if (typeof refusal === 'string' && refusal !== '') {
      this.#refused = true
      this.#text(refusal)
    }
    if (!calls?.length) return
    if (this.#open === 'reasoning') this.#close()
    this.#calls ??= createToolCalls((part) => this.#say(part))
    this.#sort((all) => calls.forEach(all.take))
  }

  /** Pieces that belong to no call make the answer invalid. */
  #sort(work: (calls: ToolCalls) => void): void {
    if (!this.#calls) return
    try {
      work(this.#calls)
    } catch (error) {
      this.#failed = true
      this.#say({ type: 'error', error })
    }
  }

  #text(delta: string): void {
    if (delta === '') return
    if (this.#open !== 'text') {
      this.#close()
      this.#open = 'text'
      this.#say({ type: 'text-start', id: textId })
    }
    this.#say({ type: 'text-delta', id: textId, delta })
  }

  #think(delta: string): void {
    if (this.#open !== 'reasoning') {
      this.#close()
      this.#open = 'reasoning'
      this.#say({ type: 'reasoning-start', id: reasoningId })
    }
    this.#say({ type: 'reasoning-delta', id: reasoningId, delta })
  }

  /** Content in parts: `{type: 'text', text}` and `{type: 'thinking', thinking: [{type: 'text', text}]}`; others mean nothing. */
  #piece({ type, text, thinking }: { type: string; text?: unknown; thinking?: unknown }): void {
    if (type === 'text' && typeof text === 'string') this.#text(text)
    if (type !== 'thinking' || !Array.isArray(thinking)) return
    const thought = thinking
      .map((one: { type?: unknown; text?: unknown } | null) => (one?.type === 'text' ? one.text : undefined))
      .filter((one) => typeof one === 'string')
      .join('')
    if (thought !== '') this.#think(thought)
  }

  #close(): void {
    if (this.#open === 'text') this.#say({ type: 'text-end', id: textId })
    else if (this.#open === 'reasoning') this.#say({ type: 'reasoning-end', id: reasoningId })
    this.#open = undefined
  }

  /** Some servers begin with a chunk that has no names yet. */
  #name({ id, model, created }: Chunk): void {
    if (!id && !model && !created) return
    this.#named = true
    this.#say({
      type: 'response-metadata',
      ...(id ? { id } : {}),
      ...(model ? { modelId: model } : {}),
      ...(created ? { timestamp: new Date(created * 1_000) } : {}),
    })
  }

  #fail(message: string, data: unknown): void {
    this.#failed = true
    this.#say({ type: 'error', error: new InvalidResponseDataError({ message, data }) })
  }

  #reason(): LanguageModelV4FinishReason {
    if (this.#finish === undefined || this.#failed) return { unified: 'error', raw: this.#finish }
    const unified = reasons.get(this.#finish) ?? 'other'
    return { unified: unified === 'stop' && this.#refused ? 'content-filter' : unified, raw: this.#finish }
  }

  #say(part: Part): void {
    this.#parts.push(part)
  }

  #take(): readonly Part[] {
    const parts = this.#parts
    this.#parts = []
    return parts
  }
}

/** The chunk does nothing but add text. */
function isTextAlone({ choices, usage }: Chunk): boolean {
  const [choice] = choices
  if (choices.length !== 1 || usage || isSet(choice!.finish_reason) || !choice!.delta) return false
  const { content, role: _, ...rest } = choice!.delta as Delta & { role?: unknown }
  return typeof content === 'string' && !Object.values(rest).some(isSet)
}
const isSet = (value: unknown): boolean => value !== null && value !== undefined

/**
 * Frames that differ from one that was read in nothing but their text: parsing each again is half of what a delta costs. What
 * stands between the same beginning, which ends inside the text's quotes, and the same end, which starts with the closing one,
 * is that text when it is the inside of a JSON string; for everything else the frame is read as a whole.
 */
class LikeFrames {
  #begin = ''
  #end = ''
  #left = lessons

  learn(data: string, text: string): void {
    if (this.#left-- <= 0) return
    const at = data.indexOf(contentKey)
    const inside = JSON.stringify(text).slice(1, -1)
    const begin = data.slice(0, at + contentKey.length)
    const alone = at >= 0 && data.indexOf(contentKey, at + 1) < 0
    if (!alone || data.slice(begin.length, begin.length + inside.length + 1) !== `${inside}"`) return
    this.#begin = begin
    this.#end = data.slice(begin.length + inside.length)
  }

  textOf(data: string): string | undefined {
    const from = this.#begin.length
    const to = data.length - this.#end.length
    // Two slices and two comparisons: `startsWith` and `endsWith` cost ten times as much on a piece of a larger string.
    if (to < from || from === 0 || data.slice(0, from) !== this.#begin || data.slice(to) !== this.#end) return undefined
    const inside = data.slice(from, to)
    if (inside.length < sliced && !inside.includes('\\') && !inside.includes('"')) return inside
    try {
      // Also a copy: a longer slice would keep the whole read that it is cut from in memory, for as long as the conversation.
      return JSON.parse(`"${inside}"`) as string
    } catch {
      return undefined
    }
  }
}
const contentKey = '"content":"'
/** Shorter slices are copies in this engine. */
const sliced = 13
/** A server whose frames differ in more than their text each time is not learned from for ever. */
const lessons = 16

const reasons: ReadonlyMap<string, LanguageModelV4FinishReason['unified']> = new Map([
  ['stop', 'stop'],
  ['length', 'length'],
  ['content_filter', 'content-filter'],
  ['tool_calls', 'tool-calls'],
  ['function_call', 'tool-calls'],
])

function usageOf(usage: Chunk['usage']): Extract<Part, { type: 'finish' }>['usage'] {
  if (!usage) {
    return {
      inputTokens: { total: undefined, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
      outputTokens: { total: undefined, text: undefined, reasoning: undefined },
    }
  }
  const asked = usage.prompt_tokens ?? 0
  const answered = usage.completion_tokens ?? 0
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0
  const thought = usage.completion_tokens_details?.reasoning_tokens ?? 0
  return {
    inputTokens: { total: asked, noCache: asked - cached, cacheRead: cached, cacheWrite: undefined },
    outputTokens: { total: answered, text: Math.max(0, answered - thought), reasoning: thought },
  }
}
