import { createHash } from 'node:crypto'
import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { microcentsPerCent, ModelPrice, Prices, costOf } from '#contracts/prices'
import { readFile } from 'node:fs/promises'
import type { ModelPrice as PublicPrice, PriceCalculation } from '@pydantic/genai-prices'

const models = Type.Record(Type.String(), ModelPrice, {
  default: {},
  description: 'Prices by `provider/model`; a `*` at the end stands for any rest, and the longest match wins.',
})
const serviceCents = (description: string) => Type.Number({ minimum: 0, maximum: 1e6, default: 0, description })

/**
 * The cost of model calls: the table in the role file comes first, then the public table. A model in neither table has no price, which is not the
 * same as a price of zero.
 */
export default definePlugin({
  name: 'prices',
  config: Settings({
    models,
    before: Type.Array(
      Type.Object(
        {
          until: Type.String({
            pattern: '^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}(\\.\\d+)?Z$',
            expects: 'a time in UTC such as 2026-11-01T00:00:00Z',
            description: 'The time until which they applied.',
          }),
          models,
        },
        { additionalProperties: false },
      ),
      {
        default: [],
        description:
          'Former tables, so that usage of an earlier time that is charged late has the prices of that time.',
      },
    ),
    publicTable: Type.Boolean({
      default: true,
      description: 'Models that no line matches have the public prices of their providers (@pydantic/genai-prices).',
    }),
    toolCallCents: serviceCents('Price of a tool call.'),
    sandboxSecondCents: serviceCents('Price of a second of a sandbox.'),
    storedGibDayCents: serviceCents('Price of a stored GiB for one day.'),
  }),
  provides: { prices: Prices },
  async setup({ config }) {
    const { toolCallCents, sandboxSecondCents, storedGibDayCents, publicTable } = config
    const below = publicTable ? await openPublicTable() : undefined
    const services = {
      toolCall: toolCallCents * microcentsPerCent,
      sandboxSecond: sandboxSecondCents * microcentsPerCent,
      storedGibDay: storedGibDayCents * microcentsPerCent,
    }
    const own = createHash('sha256').update(JSON.stringify(config)).digest('hex').slice(0, 8)
    const version = below ? `${own}+${below.version}` : own
    const before = config.before
      .map(({ until, models: table }) => ({ until: Date.parse(until), table: createTable(table) }))
      .toSorted((a, b) => a.until - b.until)
    return { prices: createPrices({ now: createTable(config.models), before, below, services, version }) }
  },
})

type PriceTable = Pick<Prices, 'priceOf'>

interface Tables extends Pick<Prices, 'services' | 'version'> {
  readonly now: PriceTable
  /** Earlier price tables, oldest first. Each was valid until its `until`, in milliseconds since the epoch. */
  readonly before: readonly { readonly until: number; readonly table: PriceTable }[]
  readonly below: PublicTable | undefined
}

/**
 * Prices a call by the role file's table that was valid at the time of the call. A model without a line in that table gets its price from the
 * public table.
 */
function createPrices({ now, before, below, services, version }: Tables): Prices {
  const tableAt = (at: Date | undefined): PriceTable =>
    (at && before.find(({ until }) => at.getTime() < until)?.table) ?? now
  return {
    version,
    services,
    priceOf: (model) => now.priceOf(model) ?? below?.priceOf(model),
    costCents(usage, at) {
      const price = tableAt(at).priceOf(usage.model)
      return price ? costOf(price, usage) : below?.costCents(usage, at)
    },
  }
}

interface Line {
  readonly provider: string
  /** The pattern without its `*`. */
  readonly name: string
  /** The name without its provider prefix. */
  readonly bare: string
  readonly open: boolean
  readonly price: ModelPrice
}

/** Builds a price table from the role file. A key is a model name; a `*` at its end matches any rest of the name. */
function createTable(models: Readonly<Record<string, ModelPrice>>): PriceTable {
  const lines = Object.entries(models)
    .map(([pattern, price]): Line => {
      const open = pattern.endsWith('*')
      const name = open ? pattern.slice(0, -1) : pattern
      if (name.includes('*'))
        throw new Error(`the price of '${pattern}': a * stands at the end of a name, for any rest`)
      const slash = name.indexOf('/')
      return { provider: name.slice(0, Math.max(slash, 0)), name, bare: name.slice(slash + 1), open, price }
    })
    // The most specific line comes first: longest name first, and an exact name before a pattern of the same length.
    .sort((a, b) => b.name.length - a.name.length || Number(a.open) - Number(b.open))
  return { priceOf: (model) => priceOf(lines, model) }
}

function priceOf(lines: readonly Line[], model: string): ModelPrice | undefined {
  const whole = lines.find(({ name, open }) => (open ? model.startsWith(name) : model === name))
  return whole ? whole.price : priceOfBare(lines, model)
}

/**
 * Third-party runtimes may name a model without its provider, so the provider of the call is unknown. A price is found only if the best lines of
 * all providers agree. `provider/*` is skipped, because it says nothing about a model.
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

/** The public prices of model providers. Prices carry dates, so a call costs what its model cost when the call was made. */
interface PublicTable extends Pick<Prices, 'priceOf' | 'costCents'> {
  readonly version: string
}

const microcentsPerDollar = 100 * microcentsPerCent
/** Maps our provider names to those of the public table, where the two differ. */
const providerNames: Readonly<Record<string, string>> = {
  gemini: 'google',
  bedrock: 'aws',
  vertex: 'google',
  xai: 'x-ai',
}
/** Finding a model takes most of a millisecond, so prices are cached: for at most 500 models, each for one hour. */
const mostKnown = 500
const keepMs = 3_600_000

interface Known {
  /** Undefined if the public table has no price for the model. */
  readonly price: ModelPrice | undefined
  /** True if the price is the same for every call. Otherwise each call is looked up by its time and tokens. */
  readonly flat: boolean
  readonly at: number
}

/** Opens the public table. The package is loaded only when it is needed. */
async function openPublicTable(): Promise<PublicTable> {
  const { calcPrice } = await import('@pydantic/genai-prices')
  const manifest = new URL('../package.json', import.meta.resolve('@pydantic/genai-prices'))
  const { version } = JSON.parse(await readFile(manifest, 'utf8')) as { version: string }
  const known = new Map<string, Known>()

  const calculate = (counted: Parameters<typeof calcPrice>[0], model: string, at?: Date): PriceCalculation | null => {
    const slash = model.indexOf('/')
    // Several providers may offer a model of this name at different prices, so a name without a provider has no public price.
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
    // Model names come from profiles and may be any text, so the cache is bounded and the oldest entry is dropped.
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
/** Converts dollars per million tokens, as in the public table, to cents per million tokens. A tiered price becomes its lowest tier. */
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
