import type { ModelPrice } from '#contracts/prices'

interface Line {
  readonly provider: string
  /** The pattern without its `*`. */
  readonly name: string
  /** The same behind the provider. */
  readonly bare: string
  readonly open: boolean
  readonly price: ModelPrice
}

/** Prices by model. */
export interface PriceTable {
  /** Undefined when no line is about the model. */
  priceOf(model: string): ModelPrice | undefined
}

/** A table of the role file: names of models, with a `*` at the end for any rest. */
export function createTable(models: Readonly<Record<string, ModelPrice>>): PriceTable {
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
  return { priceOf: (model) => priceOf(lines, model) }
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
