import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { costOf, ModelPrice, Prices } from '#contracts/prices'

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
    priceOf: (model) => priceOf(lines, model),
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
