import { createHash } from 'node:crypto'
import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { costOf, microcentsPerCent, ModelPrice, Prices } from '#contracts/prices'
import { openPublicTable, type PublicTable } from './tables.ts'
import { createTable, type PriceTable } from './tables.ts'

const models = Type.Record(Type.String(), ModelPrice, {
  default: {},
  description: 'Prices by `provider/model`; a `*` at the end stands for any rest, and the longest match wins.',
})
const serviceCents = (description: string) => Type.Number({ minimum: 0, maximum: 1e6, default: 0, description })

/** What model calls cost: by the table in the role file, and below it by the public one. A model of neither has no price, which is not zero. */
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
            description: 'When they stopped to hold.',
          }),
          models,
        },
        { additionalProperties: false },
      ),
      {
        default: [],
        description: 'Tables that held before, so that what was used then, and is charged late, is charged as it was.',
      },
    ),
    publicTable: Type.Boolean({
      default: true,
      description: 'Models that no line matches have the public prices of their providers (@pydantic/genai-prices).',
    }),
    toolCallCents: serviceCents('What is charged for a tool call.'),
    sandboxSecondCents: serviceCents('What is charged for a second of a sandbox.'),
    storedGibDayCents: serviceCents('What is charged for a day of a GiB that is stored.'),
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

interface Tables extends Pick<Prices, 'services' | 'version'> {
  readonly now: PriceTable
  /** Those that held before, the oldest first; `until` in milliseconds. */
  readonly before: readonly { readonly until: number; readonly table: PriceTable }[]
  readonly below: PublicTable | undefined
}

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
