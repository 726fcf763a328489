import type { LanguageModelV4StreamPart, SharedV4ProviderMetadata } from '@ai-sdk/provider'
import { withoutCycles } from '#contracts/circular'
import type { RuntimeEvent } from '#contracts/run-event'
import type { OpenTurn, ReasoningPart } from './messages.ts'

/** Characters per event. Deltas of reasoning are only parts of words, so they are collected. */
const eventChars = 400
/** The most characters of reasoning that one run shows. */
const maxShownChars = 40_000

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
    open.set(id, part)
    turn.addReasoning(part)
    return part
  }
  return {
    flush,
    take(part) {
      const thought = partOf(part.id)
      if (part.providerMetadata) thought.providerOptions = merged(thought.providerOptions, part.providerMetadata)
      if (part.type === 'reasoning-end') {
        // The next step counts its parts from the start again.
        open.delete(part.id)
        return flush()
      }
      if (part.type === 'reasoning-start') return undefined
      thought.text += part.delta
      if (left > 0) waiting += part.delta
      return waiting.length >= eventChars ? flush() : undefined
    },
  }
}

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
