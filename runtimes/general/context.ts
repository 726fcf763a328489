import type { LanguageModelV4FunctionTool } from '@ai-sdk/provider'
import type { Profile } from '#contracts/profiles'
import type { RuntimeEvent } from '#contracts/run-event'
import { fileSizeOfAll, mostFileChars, type Turn } from './conversation.ts'
import { fileSizeOf, fileTokensOf, type Message, sizeOf, textPart, withoutReasoning } from './messages.ts'

// The part of a conversation that is sent to the model.

/** About right for English text. Other languages and code need more tokens; the reserve for the answer and a second attempt cover that. */
const charsPerToken = 4
/** Tokens reserved for the answer when the profile does not limit it. */
const answerTokens = 4_096
/** Characters that are kept of an old tool result when it is cut. */
const keptChars = 400
/** The factor by which the prompt shrinks when a model server refused it as too long, because the estimate was wrong. */
const harder = 0.5

export interface Fitted {
  readonly messages: readonly Message[]
  /** The run's own messages among them, when some of them were cut. The run keeps these: what was cut once has no room later either. */
  readonly turn?: readonly Message[]
  /** The event for readers, when something is left out for the first time. */
  readonly event?: RuntimeEvent
}

/** Keeps the prompt of a run within the context of its model. */
export interface ContextWindow {
  fit(turn: readonly Message[], tools: readonly LanguageModelV4FunctionTool[] | undefined): Fitted
  /** Fits the same messages into half the context. Undefined when nothing more can be left out. */
  fitHarder(turn: readonly Message[], tools: readonly LanguageModelV4FunctionTool[] | undefined): Fitted | undefined
}

/**
 * Fits the conversation into the model's context. The oldest turns are dropped first, as a whole; then this turn's old tool results are cut, with
 * their images. The instructions, the newest user message, and every pair of call and result stay.
 */
export function createContext(
  { model, instructions, limits }: Profile,
  contextTokens: number,
  before: readonly Turn[],
): ContextWindow {
  const turns = before.map((turn) =>
    turn.model === undefined || turn.model === model ? turn.messages : withoutReasoning(turn.messages, 'none'),
  )
  // The history has already measured these turns.
  const weights = turns.map((messages, i) => {
    const turn = before[i]!
    const measured = messages === turn.messages && turn.fileSize === 0
    return measured ? Math.ceil(turn.size / charsPerToken) : weigh(messages)
  })
  const weightBefore = weights.reduce((sum, weight) => sum + weight, 0)
  const all = turns.flat()
  const reserved = Math.min(limits.maxOutputTokens ?? answerTokens, contextTokens >> 1)
  const room = contextTokens - reserved - Math.ceil(instructions.length / charsPerToken)
  let told = ''
  /** Results of this run that were cut. */
  let cutResults = 0
  let measured: readonly LanguageModelV4FunctionTool[] | undefined
  let toolWeight = 0

  const fitInto = (turn: readonly Message[], budget: number): Fitted => {
    let weight = weightBefore
    let droppedTurns = 0
    const own = weigh(turn)
    while (weight + own > budget && droppedTurns < turns.length) weight -= weights[droppedTurns++]!
    const isLong = weight + own > budget || fileSizeOfAll(turn) > mostFileChars
    const short = isLong ? shortened(turn, budget) : undefined
    const messages = short?.messages ?? turn
    cutResults += short?.cutResults ?? 0
    const kept = droppedTurns === 0 ? all : turns.slice(droppedTurns).flat()
    const fitted = {
      messages: kept.length === 0 ? messages : [...kept, ...messages],
      ...(short ? { turn: messages } : {}),
    }
    const message = sentence(droppedTurns, cutResults)
    if (message === told || message === '') return fitted
    told = message
    return { ...fitted, event: { type: 'progress', stage: 'context_trimmed', message, droppedTurns, cutResults } }
  }
  const roomBeside = (tools: readonly LanguageModelV4FunctionTool[] | undefined): number => {
    if (tools !== measured) {
      measured = tools
      toolWeight = tools ? Math.ceil(JSON.stringify(tools).length / charsPerToken) : 0
    }
    return room - toolWeight
  }
  let scale = 1
  return {
    fit: (turn, tools) => fitInto(turn, roomBeside(tools) * scale),
    fitHarder(turn, tools) {
      const budget = roomBeside(tools) * scale
      const sent = Math.min(weightBefore + weigh(turn), budget)
      const before = fitInto(turn, budget).messages
      // The smaller budget applies to the rest of the run.
      scale *= budget > 0 ? (sent * harder) / budget : harder
      const fitted = fitInto(turn, sent * harder)
      return weigh(fitted.messages) < weigh(before) ? fitted : undefined
    },
  }
}

function sentence(turns: number, results: number): string {
  const parts = [
    turns > 0 ? `${turns} older ${turns === 1 ? 'turn was' : 'turns were'} left out` : '',
    results > 0 ? `${results} older tool ${results === 1 ? 'result was' : 'results were'} cut` : '',
  ].filter((part) => part !== '')
  return parts.length === 0 ? '' : `${parts.join(' and ')}: the conversation is longer than the model takes.`
}

/** Estimates the tokens of messages. */
function weigh(messages: readonly Message[]): number {
  let tokens = 0
  for (const message of messages) {
    tokens += sizeOf(message) / charsPerToken + fileTokensOf(message)
  }
  return Math.ceil(tokens)
}

/** Cuts tool results, oldest first, until the turn fits. Images of tools are removed with them: few tokens of a model can be megabytes here. */
function shortened(turn: readonly Message[], budget: number): { messages: readonly Message[]; cutResults: number } {
  const messages = [...turn]
  let weight = weigh(messages)
  let files = fileSizeOfAll(turn)
  let cutResults = 0
  // Start at 1, because the first message is the user's own.
  for (let i = 1; i < messages.length && (weight > budget || files > mostFileChars); i++) {
    const message = messages[i]!
    const cut = message.role === 'tool' && weight > budget ? cutTool(message) : message
    const smaller = cut.role === 'user' ? cutFiles(cut) : cut
    if (smaller === message) continue
    weight += weigh([smaller]) - weigh([message])
    files -= fileSizeOf(message) - fileSizeOf(smaller)
    if (message.role === 'tool') cutResults += message.content.filter(isLong).length
    messages[i] = smaller
  }
  return { messages, cutResults }
}

type Tool = Extract<Message, { role: 'tool' }>
type User = Extract<Message, { role: 'user' }>
type Result = Tool['content'][number]

const valueOf = ({ output }: Result): string => ('value' in output ? String(output.value) : '')
const isLong = (result: Result): boolean => valueOf(result).length > 2 * keptChars

function cutTool(message: Tool): Message {
  if (!message.content.some(isLong)) return message
  const cut = (result: Result): Result => {
    if (!isLong(result)) return result
    const value = valueOf(result)
    const rest = `[${value.length - keptChars} characters were cut: the conversation is longer than the model takes]`
    const type = result.output.type === 'error-text' ? 'error-text' : 'text'
    // A copy, because a slice keeps all of the text that it is of.
    const begin = Buffer.from(value.slice(0, keptChars)).toString()
    return { ...result, output: { type, value: `${begin}\n${rest}` } }
  }
  return { ...message, content: message.content.map(cut) }
}

const cutFiles = (message: User): Message =>
  message.content.some(({ type }) => type === 'file')
    ? { ...message, content: message.content.map((part) => (part.type === 'file' ? textPart('[image]') : part)) }
    : message
