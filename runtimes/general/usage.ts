import type { LanguageModelV4Usage } from '@ai-sdk/provider'

/** Tokens of one run, summed over its model calls. Costs are not known here. */
export interface RunUsage {
  /** False until a model call finished. */
  readonly known: boolean
  readonly total: { readonly inputTokens: number; readonly outputTokens: number; readonly cachedTokens?: number }
  add(usage: LanguageModelV4Usage): void
}

export function createUsage(): RunUsage {
  let calls = 0
  let input = 0
  let output = 0
  let cached = 0
  return {
    get known() {
      return calls > 0
    },
    get total() {
      return { inputTokens: input, outputTokens: output, ...(cached > 0 ? { cachedTokens: cached } : {}) }
    },
    add({ inputTokens, outputTokens }) {
      calls++
      input += count(inputTokens.total)
      output += count(outputTokens.total)
      cached += count(inputTokens.cacheRead)
    },
  }
}

/** Servers omit counts, and some send nonsense. */
const count = (tokens: number | undefined): number =>
  tokens !== undefined && Number.isFinite(tokens) && tokens > 0 ? Math.round(tokens) : 0
