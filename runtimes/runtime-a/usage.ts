import type { RuntimeEvent } from '#contracts/run-event'
import type { ModelTotals, Tokens } from './sdk.ts'

type UsageEvent = Extract<RuntimeEvent, { type: 'usage' }>

/** What the model calls of one run have used. */
export interface Usage {
  /** One call whose tokens the model server has told. */
  call(tokens: Tokens): UsageEvent
  /** What else the vendor has counted: it also calls models by itself, to summarize a long conversation. */
  rest(totals: Readonly<Record<string, ModelTotals>>): UsageEvent[]
}

/** `model`: as the profile names it. Those that are read from a cache are part of the input. */
export function createUsage(model: string): Usage {
  const provider = model.slice(0, model.indexOf('/') + 1)
  const told = { input: 0, output: 0, cached: 0 }
  return {
    call(tokens) {
      const cached = count(tokens.cache_read_input_tokens)
      const input = count(tokens.input_tokens) + cached + count(tokens.cache_creation_input_tokens)
      const output = count(tokens.output_tokens)
      told.input += input
      told.output += output
      told.cached += cached
      return event(model, input, output, cached)
    },
    rest: (totals) =>
      Object.entries(totals).flatMap(([name, total]) => {
        const called = provider + name === model ? told : { input: 0, output: 0, cached: 0 }
        const read = count(total.cacheReadInputTokens)
        const all = count(total.inputTokens) + read + count(total.cacheCreationInputTokens)
        const input = Math.max(0, all - called.input)
        const output = Math.max(0, count(total.outputTokens) - called.output)
        const cached = Math.min(input, Math.max(0, read - called.cached))
        return input + output > 0 ? [event(provider + name, input, output, cached)] : []
      }),
  }
}

const event = (model: string, inputTokens: number, outputTokens: number, cachedTokens: number): UsageEvent => ({
  type: 'usage',
  inputTokens,
  outputTokens,
  ...(cachedTokens > 0 ? { cachedTokens } : {}),
  model,
})

/** Servers omit counts, and some send nonsense. */
const count = (tokens: number | null | undefined): number =>
  typeof tokens === 'number' && Number.isFinite(tokens) && tokens > 0 ? Math.round(tokens) : 0
