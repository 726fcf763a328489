import type { RuntimeEvent } from '#contracts/run-event'
import { turnFailure, runtimeBErrors } from './errors.ts'
import type { Notification } from './json-rpc.ts'
import type { ItemReported, McpToolCall, MessageDelta, ThreadItem, TurnCompleted, UsageReported } from './protocol.ts'

interface TurnOptions {
  /** The name of the model in the profile. */
  readonly model: string
  readonly maxSteps: number
  readonly sessionServer: string
}

/** Separates the texts of two messages. */
const paragraph = '\n\n'
/** The name under which Codex reports its own tools for the servers' resources. */
const resourceServer = 'codex'
/** Kinds of items that would mean that something acted on this machine. */
const hostItems: ReadonlySet<string> = new Set(['commandExecution', 'fileChange', 'imageView'])

/** Turns the notifications of one turn into events. */
export class Turn {
  readonly #options: TurnOptions
  #id: string | undefined
  #text = ''
  #lastMessage = ''
  #said = false
  #completed = false
  /** True when the next text is the first of its message. */
  #begins = true
  /** How many model calls have ended. */
  #steps = 0
  #calledSinceUsage = false
  /** Tokens of the whole conversation. On resuming, Codex reports the usage of earlier turns, unless they were summarized. */
  #totalTokens: number | undefined
  /** True when the next report of tokens repeats the last one. */
  #repeats = false
  readonly #ids = new Set<string>()
  readonly #open = new Map<string, { readonly id: string; readonly name: string }>()

  constructor(options: TurnOptions) {
    this.#options = options
  }

  /** All text so far: the deltas joined. */
  get text(): string {
    return this.#text
  }
  /** The text of the last message alone. */
  get lastMessage(): string {
    return this.#lastMessage
  }
  /** True once the model wrote or did something. */
  get said(): boolean {
    return this.#said
  }
  /** True while a tool is executed, when silence is normal. */
  get waitsForTool(): boolean {
    return this.#open.size > 0
  }
  /** True once the turn has completed. When the turn ends otherwise, `take` throws an AppError. */
  get completed(): boolean {
    return this.#completed
  }

  /** Called when the turn was started under this id. */
  begin(turnId: string): void {
    this.#id = turnId
  }

  /** Takes any notification, from the opening of the conversation on. */
  take({ method, params }: Notification): Iterable<RuntimeEvent> {
    if (method === 'turn/completed') {
      const { turn } = params as TurnCompleted
      if (turn.id === this.#id) this.#end(turn)
      return []
    }
    if (this.#id === undefined || (params as { turnId?: unknown } | null)?.turnId !== this.#id) {
      if (method === 'thread/tokenUsage/updated') this.#totalTokens = tokensOf((params as UsageReported).tokenUsage)
      return []
    }
    if (method === 'item/agentMessage/delta') return this.#say((params as MessageDelta).delta)
    if (method === 'item/started') return this.#started((params as ItemReported).item)
    if (method === 'item/completed') return this.#ended((params as ItemReported).item)
    if (method === 'thread/tokenUsage/updated') return this.#used((params as UsageReported).tokenUsage)
    return []
  }

  #say(delta: string): RuntimeEvent[] {
    if (delta === '') return []
    const shown = this.#begins && this.#text !== '' ? paragraph + delta : delta
    this.#lastMessage = this.#begins ? delta : this.#lastMessage + delta
    this.#begins = false
    this.#said = true
    this.#text += shown
    return [{ type: 'assistant', text: shown, delta: true }]
  }

  #started(item: ThreadItem): RuntimeEvent[] {
    if (hostItems.has(item.type))
      throw runtimeBErrors.runtimeError({ message: 'Codex began to use a tool of this machine.' })
    if (item.type === 'agentMessage') this.#begins = true
    if (item.type === 'contextCompaction') this.#repeats = this.#totalTokens === undefined
    if (item.type !== 'mcpToolCall') return []
    this.#said = true
    this.#calledSinceUsage = true
    const call = { id: this.#uniqueId(item.id), name: this.#nameOf(item) }
    this.#open.set(item.id, call)
    return [{ type: 'tool_call', ...call, arguments: item.arguments }]
  }

  #ended(item: ThreadItem): RuntimeEvent[] {
    // Some model servers send no deltas, so the whole text is taken here.
    if (item.type === 'agentMessage') return this.#begins ? this.#say(item.text) : []
    if (item.type !== 'mcpToolCall') return []
    const call = this.#open.get(item.id)
    this.#open.delete(item.id)
    return call ? [{ type: 'tool_result', ...call, ...outcomeOf(call.name, item) }] : []
  }

  *#used({ total, last }: UsageReported['tokenUsage']): Generator<RuntimeEvent> {
    const { model, maxSteps } = this.#options
    const tokens = tokensOf({ total })
    // Codex repeats a report without a model call in between: before it summarizes a conversation, and after.
    const known = this.#repeats || tokens === this.#totalTokens
    this.#repeats = false
    this.#totalTokens = tokens
    if (known) return
    const { inputTokens, outputTokens, cachedInputTokens: cachedTokens } = last
    yield { type: 'usage', inputTokens, outputTokens, ...(cachedTokens > 0 ? { cachedTokens } : {}), model }
    if (++this.#steps > maxSteps || (this.#steps === maxSteps && this.#calledSinceUsage)) {
      throw runtimeBErrors.maxSteps({
        message: `The run reached its limit of ${maxSteps} model calls before an answer.`,
      })
    }
    this.#calledSinceUsage = false
  }

  #end({ status, error }: TurnCompleted['turn']): void {
    if (status !== 'completed') {
      throw error ? turnFailure(error) : runtimeBErrors.runtimeError({ message: 'Codex ended the turn early.' })
    }
    this.#completed = true
  }

  #nameOf({ server, tool }: McpToolCall): string {
    return server === this.#options.sessionServer || server === resourceServer ? tool : `mcp__${server}__${tool}`
  }

  /** Makes the id unique, because some model servers count from 0 in every answer. */
  #uniqueId(id: string): string {
    let unique = id
    for (let n = 2; this.#ids.has(unique); n++) unique = `${id}_${n}`
    this.#ids.add(unique)
    return unique
  }
}

const tokensOf = ({ total }: Pick<UsageReported['tokenUsage'], 'total'>): number =>
  total.inputTokens + total.outputTokens

/** Longer results are cut in the event, which is stored and shown. The model gets the rest. */
const maxChars = 200_000

function outcomeOf(name: string, { status, result, error }: McpToolCall): { ok: boolean; content: string } {
  const ok = status === 'completed'
  if (!result) return { ok, content: refusal(name, error?.message ?? '') }
  const texts = result.content.map(textOf)
  if (texts.length === 0 && result.structuredContent) texts.push(JSON.stringify(result.structuredContent))
  const content = texts.join('\n')
  return {
    ok,
    content: content.length > maxChars ? `${content.slice(0, maxChars)}\n[cut after ${maxChars} characters]` : content,
  }
}

/** The sentence for a failed call. A server's message about the arguments may be shown; one about a connection may name addresses. */
function refusal(name: string, message: string): string {
  const words = /Mcp error: -32602: ([^]*)$/.exec(message)?.[1]
  return words === undefined
    ? `The tool '${name}' could not be called.`
    : `The tool '${name}' refused the call: ${words.slice(0, 1_000)}`
}

function textOf(part: unknown): string {
  const { type, text, resource, name, uri } = part as Readonly<Record<string, unknown>>
  if (type === 'text') return String(text)
  if (type === 'resource') return String((resource as { text?: unknown } | undefined)?.text ?? '[resource]')
  return type === 'resource_link' ? `[${String(name)}: ${String(uri)}]` : `[${String(type)}]`
}
