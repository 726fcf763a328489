import { readFile } from 'node:fs/promises'
import type { ModelPrice as PublicPrice, PriceCalculation } from '@pydantic/genai-prices'
import { costOf, microcentsPerCent, type ModelPrice, type Prices } from '#contracts/prices'

/** The public prices of model providers. They have dates, so a call costs what it cost when it was made. */
export interface PublicTable extends Pick<Prices, 'priceOf' | 'costCents'> {
  readonly version: string
}

const microcentsPerDollar = 100 * microcentsPerCent
/** Names of providers here that are others there. */
const providerNames: Readonly<Record<string, string>> = {
  gemini: 'google',
  bedrock: 'aws',
  vertex: 'google',
  xai: 'x-ai',
}
/** Finding a model takes most of a millisecond, so prices are kept: of so many models, for so long. */
const mostKnown = 500
const keepMs = 3_600_000

interface Known {
  /** Undefined: there is none. */
  readonly price: ModelPrice | undefined
  /** It is the same for every call; where it is not, each one is looked up. */
  readonly flat: boolean
  readonly at: number
}

/** Opens the table of the package; it is loaded only where it is used. */
export async function openPublicTable(): Promise<PublicTable> {
  const { calcPrice } = await import('@pydantic/genai-prices')
  const manifest = new URL('../package.json', import.meta.resolve('@pydantic/genai-prices'))
  const { version } = JSON.parse(await readFile(manifest, 'utf8')) as { version: string }
  const known = new Map<string, Known>()

  const calculate = (counted: Parameters<typeof calcPrice>[0], model: string, at?: Date): PriceCalculation | null => {
    const slash = model.indexOf('/')
    // Without its provider a name may mean a model of anybody, at any price.
    if (slash <= 0) return null
    const provider = model.slice(0, slash)
    const options = { providerId: providerNames[provider] ?? provider, ...(at ? { timestamp: at } : {}) }
    return calcPrice(counted, model.slice(slash + 1), options)
  }
  const look = (model: string): Known => {
    const before = known.get(model)
    if (before && Date.now() < before.at + keepMs) return before
    const found = calculate({ input_tokens: 1 }, model)
    const fresh = {
      price: found ? flatPrice(found.model_price) : undefined,
      flat: !found || isFlat(found.model_price),
      at: Date.now(),
    }
    known.delete(model)
    // The oldest goes: names come from profiles, and may be anything.
    if (known.size >= mostKnown) known.delete(known.keys().next().value!)
    known.set(model, fresh)
    return fresh
  }
  return {
    version: `genai-prices-${version}`,
    priceOf: (model) => look(model).price,
    costCents(usage, at) {
      const { price, flat } = look(usage.model)
      const isNow = !at || at.getTime() > Date.now() - keepMs
      if (flat && isNow) return price && costOf(price, usage)
      const { model, inputTokens, outputTokens, cachedTokens = 0 } = usage
      if (inputTokens === 0 && outputTokens === 0) return undefined
      const counted = {
        input_tokens: inputTokens,
        output_tokens: outputTokens,
        ...(cachedTokens > 0 ? { cache_read_tokens: Math.min(cachedTokens, inputTokens) } : {}),
      }
      const found = calculate(counted, model, at)
      return found ? Math.round(found.total_price * microcentsPerDollar) / microcentsPerCent : undefined
    },
  }
}

const fields = ['input_mtok', 'output_mtok', 'cache_read_mtok'] as const
const isFlat = (price: PublicPrice): boolean => fields.every((field) => typeof (price[field] ?? 0) === 'number')
/** In dollars for a million tokens there, in cents here; of a price in tiers the lowest one. */
const centsOf = (price: PublicPrice[(typeof fields)[number]]): number | undefined => {
  const dollars = typeof price === 'object' && price !== null ? price.base : price
  return typeof dollars === 'number' ? dollars * 100 : undefined
}

function flatPrice(price: PublicPrice): ModelPrice | undefined {
  const [input, output, cached] = fields.map((field) => centsOf(price[field]))
  if (input === undefined) return undefined
  return {
    inputCentsPerMillion: input,
    outputCentsPerMillion: output ?? 0,
    ...(cached === undefined ? {} : { cachedInputCentsPerMillion: cached }),
  }
}
