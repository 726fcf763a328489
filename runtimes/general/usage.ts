import type { LanguageModelV4Usage } from '@ai-sdk/provider'

export interface CallUsage {
  readonly inputTokens: number
  readonly outputTokens: number
  readonly cachedTokens?: number
}

/** Tokens of one model call. Costs are not known here. */
export function usageOf({ inputTokens, outputTokens }: LanguageModelV4Usage): CallUsage {
  const cached = count(inputTokens.cacheRead)
  return {
    inputTokens: count(inputTokens.total),
    outputTokens: count(outputTokens.total),
    ...(cached > 0 ? { cachedTokens: cached } : {}),
  }
}

/** Servers omit counts, and some send nonsense. */
const count = (tokens: number | undefined): number =>
  tokens !== undefined && Number.isFinite(tokens) && tokens > 0 ? Math.round(tokens) : 0
