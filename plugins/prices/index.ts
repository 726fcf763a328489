import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { Prices } from '#contracts/prices'
import { createPrices, ModelPrice } from './prices.ts'

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
