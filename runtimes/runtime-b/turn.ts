import type { AppError } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'
import { codexFailed, maxStepsReached, turnFailure } from './errors.ts'
import type { Notification } from './json-rpc.ts'
import type { ItemReported, McpToolCall, MessageDelta, ThreadItem, TurnCompleted, UsageReported } from './protocol.ts'

interface TurnOptions {
  /** As the profile writes it. */
  readonly model: string
  readonly maxSteps: number
  readonly sessionServer: string
}

/** One turn as events. */
export interface Turn {
  /** All text so far: the deltas joined. */
  readonly text: string
  /** The last message alone. */
  readonly lastMessage: string
  /** The model said or did something. */
  readonly said: boolean
  /** A tool is at work: that nothing is reported means nothing. */
  readonly waitsForTool: boolean
  /** True once the turn has ended as it should. Throws an AppError when it ended otherwise. */
  readonly completed: boolean
  /** It was started under this id. */
  begin(turnId: string): void
  /** Everything that is reported from the opening of the conversation on. */
  take(notification: Notification): Iterable<RuntimeEvent>
}

/** Between the texts of two messages. */
const paragraph = '\n\n'
/** What Codex calls its own tools over the servers' resources. */
const resourceServer = 'codex'
/** Kinds of items that would mean that something was done on this machine. */
const hostItems: ReadonlySet<string> = new Set(['commandExecution', 'fileChange', 'imageView'])

export function createTurn({ model, maxSteps, sessionServer }: TurnOptions): Turn {
  let turnId: string | undefined
  let text = ''
  let lastMessage = ''
  let said = false
  let completed = false
  let begins = true
  let steps = 0
  let calledSinceUsage = false
  /** Of the whole conversation. What its former turns used is reported when it is taken up again, unless they were summarized. */
  let totalTokens: number | undefined
  let repeats = false
  const ids = new Set<string>()
  const open = new Map<string, { readonly id: string; readonly name: string }>()

  const say = (delta: string): RuntimeEvent[] => {
    if (delta === '') return []
    const shown = begins && text !== '' ? paragraph + delta : delta
    lastMessage = begins ? delta : lastMessage + delta
    begins = false
    said = true
    text += shown
    return [{ type: 'assistant', text: shown, delta: true }]
  }
  const nameOf = ({ server, tool }: McpToolCall): string =>
    server === sessionServer || server === resourceServer ? tool : `mcp__${server}__${tool}`
  /** Some model servers count their ids from 0 in every answer. */
  const uniqueId = (id: string): string => {
    let unique = id
    for (let n = 2; ids.has(unique); n++) unique = `${id}_${n}`
    ids.add(unique)
    return unique
  }
  const started = (item: ThreadItem): RuntimeEvent[] => {
    if (hostItems.has(item.type)) throw codexFailed({ message: 'Codex began to use a tool of this machine.' })
    if (item.type === 'agentMessage') begins = true
    if (item.type === 'contextCompaction') repeats = totalTokens === undefined
    if (item.type !== 'mcpToolCall') return []
    said = true
    calledSinceUsage = true
    const call = { id: uniqueId(item.id), name: nameOf(item) }
    open.set(item.id, call)
    return [{ type: 'tool_call', ...call, arguments: item.arguments }]
  }
  const ended = (item: ThreadItem): RuntimeEvent[] => {
    // A server that sends no deltas.
    if (item.type === 'agentMessage') return begins ? say(item.text) : []
    if (item.type !== 'mcpToolCall') return []
    const call = open.get(item.id)
    open.delete(item.id)
    return call ? [{ type: 'tool_result', ...call, ...outcomeOf(call.name, item) }] : []
  }
  const used = function* ({ total, last }: UsageReported['tokenUsage']): Generator<RuntimeEvent> {
    const tokens = tokensOf({ total })
    // Said again without a model call in between: before a conversation is summarized, and after it.
    const known = repeats || tokens === totalTokens
    repeats = false
    totalTokens = tokens
    if (known) return
    const { inputTokens, outputTokens, cachedInputTokens: cachedTokens } = last
    yield { type: 'usage', inputTokens, outputTokens, ...(cachedTokens > 0 ? { cachedTokens } : {}), model }
    if (++steps > maxSteps || (steps === maxSteps && calledSinceUsage)) {
      throw maxStepsReached({ message: `The run reached its limit of ${maxSteps} model calls before an answer.` })
    }
    calledSinceUsage = false
  }
  const end = ({ status, error }: TurnCompleted['turn']): void => {
    if (status === 'completed') completed = true
    else throw error ? turnFailure(error) : (codexFailed({ message: 'Codex ended the turn early.' }) as AppError)
  }

  return {
    get text() {
      return text
    },
    get lastMessage() {
      return lastMessage
    },
    get said() {
      return said
    },
    get waitsForTool() {
      return open.size > 0
    },
    get completed() {
      return completed
    },
    begin: (id) => void (turnId = id),
    take({ method, params }) {
      if (method === 'turn/completed') {
        const { turn } = params as TurnCompleted
        if (turn.id === turnId) end(turn)
        return []
      }
      if (turnId === undefined || (params as { turnId?: unknown } | null)?.turnId !== turnId) {
        if (method === 'thread/tokenUsage/updated') totalTokens = tokensOf((params as UsageReported).tokenUsage)
        return []
      }
      if (method === 'item/agentMessage/delta') return say((params as MessageDelta).delta)
      if (method === 'item/started') return started((params as ItemReported).item)
      if (method === 'item/completed') return ended((params as ItemReported).item)
      if (method === 'thread/tokenUsage/updated') return used((params as UsageReported).tokenUsage)
      return []
    },
  }
}

const tokensOf = ({ total }: Pick<UsageReported['tokenUsage'], 'total'>): number =>
  total.inputTokens + total.outputTokens

/** Longer results are cut: an event is kept and shown, and the model has the rest. */
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

/** The server's words about the arguments are for whoever reads the run; those of a connection name addresses. */
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
