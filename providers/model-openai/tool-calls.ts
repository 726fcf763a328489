import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { generateId, StreamingToolCallTracker } from '@ai-sdk/provider-utils'
import type { ToolCallDelta } from './chunk.ts'

/** The tool calls of one answer. Complete at its end only: arguments that parse may still be the beginning of longer ones. */
export interface ToolCalls {
  take(delta: ToolCallDelta): void
  end(): void
}

/** The package sorts out which piece belongs to which call; it wants to know a call's name with its first piece. */
export function createToolCalls(say: (part: LanguageModelV4StreamPart) => void): ToolCalls {
  const tracker = new StreamingToolCallTracker<ToolCallDelta>(
    { enqueue: (part) => part && say(part) },
    {
      generateId,
      extractMetadata({ extra_content: extra }) {
        const thoughtSignature = extra?.google?.thought_signature
        return thoughtSignature ? { openai: { thoughtSignature } } : undefined
      },
      buildToolCallProviderMetadata: (metadata) => metadata,
    },
  )
  const named = new Set<number>()
  /** By index, until their name is known. */
  const nameless = new Map<number, ToolCallDelta>()
  return {
    take(delta) {
      const { index } = delta
      if (index === undefined || index === null || named.has(index)) return tracker.processDelta(delta)
      const whole = joined(nameless.get(index), delta)
      if (typeof whole.function.name !== 'string') return void nameless.set(index, whole)
      nameless.delete(index)
      named.add(index)
      tracker.processDelta(whole)
    },
    end() {
      // Throws: a call without a name is none.
      for (const call of nameless.values()) tracker.processDelta(call)
      tracker.flush()
    },
  }
}

const joined = (first: ToolCallDelta | undefined, more: ToolCallDelta): ToolCallDelta => ({
  index: more.index ?? null,
  id: first?.id ?? more.id ?? null,
  function: {
    name: more.function.name ?? null,
    arguments: (first?.function.arguments ?? '') + (more.function.arguments ?? ''),
  },
  extra_content: first?.extra_content ?? more.extra_content ?? null,
})
