import type { Tokens } from './sdk.ts'

/** Tokens of one model call; those read from a cache are part of the input. */
export function usageOf(tokens: Tokens): { inputTokens: number; outputTokens: number; cachedTokens?: number } {
  const cached = count(tokens.cache_read_input_tokens)
  const input = count(tokens.input_tokens) + cached + count(tokens.cache_creation_input_tokens)
  return {
    inputTokens: input,
    outputTokens: count(tokens.output_tokens),
    ...(cached > 0 ? { cachedTokens: cached } : {}),
  }
}

/** Servers omit counts, and some send nonsense. */
const count = (tokens: number | null | undefined): number =>
  typeof tokens === 'number' && Number.isFinite(tokens) && tokens > 0 ? Math.round(tokens) : 0
