import { type Static, Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { Prices } from '#contracts/prices'
import type { Usage } from '#contracts/run-event'

const rate = (description: string) => Type.Number({ minimum: 0, maximum: 1e9, description })

const ModelPrice = Type.Object(
  {
    inputCentsPerMillion: rate('Cents for a million input tokens, cached ones not counted.'),
    outputCentsPerMillion: rate('Cents for a million output tokens.'),
    cachedInputCentsPerMillion: Type.Optional(
      rate('Cents for a million input tokens that were read from a cache; the input price when absent.'),
    ),
  },
  { additionalProperties: false },
)
type ModelPrice = Static<typeof ModelPrice>

/** What model calls cost, from the table in the role file. A model that no line matches has no price, which is not zero. */
export default definePlugin({
  name: 'prices',
  config: Settings({
    models: Type.Record(Type.String(), ModelPrice, {
      default: {},
      description: 'Prices by `provider/model`; a `*` at the end stands for any rest, and the longest match wins.',
    }),
  }),
  provides: { prices: Prices },
  setup: async ({ config }) => ({ prices: createPrices(config.models) }),
})

interface Line {
  readonly provider: string
  /** The pattern without its `*`. */
  readonly name: string
  /** The same behind the provider. */
  readonly bare: string
  readonly open: boolean
  readonly price: ModelPrice
}

function createPrices(models: Readonly<Record<string, ModelPrice>>): Prices {
  const lines = Object.entries(models)
    .map(([pattern, price]): Line => {
      const open = pattern.endsWith('*')
      const name = open ? pattern.slice(0, -1) : pattern
      if (name.includes('*'))
        throw new Error(`the price of '${pattern}': a * stands at the end of a name, for any rest`)
      const slash = name.indexOf('/')
      return { provider: name.slice(0, Math.max(slash, 0)), name, bare: name.slice(slash + 1), open, price }
    })
    // The longest first, and of two equally long ones the exact one.
    .sort((a, b) => b.name.length - a.name.length || Number(a.open) - Number(b.open))
  return {
    costCents(usage) {
      const price = priceOf(lines, usage.model)
      return price && costOf(price, usage)
    },
  }
}

function priceOf(lines: readonly Line[], model: string): ModelPrice | undefined {
  const whole = lines.find(({ name, open }) => (open ? model.startsWith(name) : model === name))
  return whole ? whole.price : priceOfBare(lines, model)
}

/**
 * Runtimes of others may name the model without its provider. Each provider's best line is taken, and they must agree:
 * which provider served the call is not known. `provider/*` says nothing about a model.
 */
function priceOfBare(lines: readonly Line[], model: string): ModelPrice | undefined {
  const found = new Map<string, ModelPrice>()
  for (const { provider, bare, open, price } of lines) {
    if (bare === '' || found.has(provider)) continue
    if (open ? model.startsWith(bare) : model === bare) found.set(provider, price)
  }
  const [first, ...others] = found.values()
  return first && others.every((other) => same(first, other)) ? first : undefined
}

const same = (a: ModelPrice, b: ModelPrice): boolean =>
  a.inputCentsPerMillion === b.inputCentsPerMillion &&
  a.outputCentsPerMillion === b.outputCentsPerMillion &&
  a.cachedInputCentsPerMillion === b.cachedInputCentsPerMillion

/** Tokens times cents per million are millionths of a cent. Cached tokens are part of the input tokens. */
function costOf(price: ModelPrice, { inputTokens, outputTokens, cachedTokens = 0 }: Usage): number | undefined {
  const { inputCentsPerMillion: input, outputCentsPerMillion: output } = price
  const cachedInput = price.cachedInputCentsPerMillion ?? input
  const free = input === 0 && output === 0 && cachedInput === 0
  // Every call has input, so this server did not count: what it cost is not known either.
  if (inputTokens === 0 && outputTokens === 0 && !free) return undefined
  const cached = Math.min(cachedTokens, inputTokens)
  const microcents = (inputTokens - cached) * input + cached * cachedInput + outputTokens * output
  return Math.round(microcents) / 1_000_000
}
