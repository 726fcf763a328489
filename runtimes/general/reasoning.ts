import type { LanguageModelV4StreamPart, SharedV4ProviderMetadata } from '@ai-sdk/provider'
import { withoutCycles } from '#contracts/circular'
import type { RuntimeEvent } from '#contracts/run-event'
import type { OpenTurn, ReasoningPart } from './messages.ts'

/** Characters per event. Deltas of reasoning are only parts of words, so they are collected. */
const eventChars = 400
/** The most characters of reasoning that one run shows. */
const maxShownChars = 40_000
/**
 * The most characters of reasoning that are kept of one run, with their signatures: about a million tokens, more than a model takes back with its
 * next call. Within a run nothing less may be left out: signed reasoning goes back as a whole, and some servers demand unsigned reasoning as well.
 */
const maxKeptChars = 4_000_000
/** What a part counts for beside its text. */
const partChars = 256

type ReasoningStreamPart = Extract<
  LanguageModelV4StreamPart,
  { type: 'reasoning-start' | 'reasoning-delta' | 'reasoning-end' }
>

/** The reasoning of one step: as the vendor signed it for the next call, and in pieces for readers. */
export interface Reasoning {
  /** Takes a part. Returns an event when enough text has been collected. */
  take(part: ReasoningStreamPart): RuntimeEvent | undefined
  /** Returns the text that was not shown yet. Called when the model begins to answer. */
  flush(): RuntimeEvent | undefined
}

/** `shows`: whether readers of the run see reasoning. */
export function createReasoning(turn: Pick<OpenTurn, 'addReasoning'>, shows: boolean): Reasoning {
  const open = new Map<string, ReasoningPart>()
  let waiting = ''
  let left = shows ? maxShownChars : 0
  let room = maxKeptChars
  /** Parts that are not whole. A signature would not fit them. */
  const cut = new WeakSet<ReasoningPart>()
  const keep = (part: ReasoningPart, chars: number): number => {
    const kept = Math.min(chars, room)
    room -= kept
    if (kept < chars) {
      cut.add(part)
      delete part.providerOptions
    }
    return kept
  }
  const flush = (): RuntimeEvent | undefined => {
    if (waiting === '' || left === 0) return undefined
    const message = waiting.slice(0, left)
    left -= message.length
    waiting = ''
    return { type: 'progress', stage: 'reasoning', message }
  }
  const partOf = (id: string): ReasoningPart => {
    const known = open.get(id)
    if (known) return known
    const part: ReasoningPart = { type: 'reasoning', text: '' }
    keep(part, partChars + id.length)
    if (cut.has(part)) return part
    open.set(id, part)
    turn.addReasoning(part)
    return part
  }
  return {
    flush,
    take(part) {
      const thought = partOf(part.id)
      if (part.providerMetadata && !cut.has(thought)) {
        const signature = merged(thought.providerOptions, part.providerMetadata)
        // Some vendors repeat the same with each delta.
        keep(thought, Math.max(0, charsOf(signature) - charsOf(thought.providerOptions)))
        if (!cut.has(thought)) thought.providerOptions = signature
      }
      if (part.type === 'reasoning-end') {
        // The next step counts its parts from the start again.
        open.delete(part.id)
        return flush()
      }
      if (part.type === 'reasoning-start') return undefined
      thought.text += part.delta.slice(0, keep(thought, part.delta.length))
      if (left > 0) waiting += part.delta
      return waiting.length >= eventChars ? flush() : undefined
    },
  }
}

const charsOf = (signature: ReasoningPart['providerOptions']): number => JSON.stringify(signature)?.length ?? 0

/** A signature arrives as a separate part, after the text that it signs. */
function merged(
  had: ReasoningPart['providerOptions'],
  more: SharedV4ProviderMetadata,
): NonNullable<ReasoningPart['providerOptions']> {
  const plain = withoutCycles(more) as typeof more
  const out = { ...had }
  for (const [vendor, fields] of Object.entries(plain)) out[vendor] = { ...out[vendor], ...fields }
  return out
}
