import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import type { Usage } from './run-event.ts'

/** Millionths of a cent, because a single run costs far less than a cent. */
export const microcentsPerCent = 1_000_000

const rate = (description: string) => Type.Number({ minimum: 0, maximum: 1e9, description })

/** What the tokens of one model cost. */
export const ModelPrice = Type.Object(
  {
    inputCentsPerMillion: rate('Cents for a million input tokens, cached ones not counted.'),
    outputCentsPerMillion: rate('Cents for a million output tokens.'),
    cachedInputCentsPerMillion: Type.Optional(
      rate('Cents for a million input tokens that were read from a cache; the input price when absent.'),
    ),
  },
  { additionalProperties: false },
)
export type ModelPrice = Static<typeof ModelPrice>

/**
 * The cost in cents of a call at a price, exact to a millionth. Undefined: no tokens were counted. Tokens times cents per
 * million are millionths of a cent; cached tokens are part of the input tokens.
 */
export function costOf(
  price: ModelPrice,
  { inputTokens, outputTokens, cachedTokens = 0 }: Omit<Usage, 'model'>,
): number | undefined {
  const { inputCentsPerMillion: input, outputCentsPerMillion: output } = price
  const cachedInput = price.cachedInputCentsPerMillion ?? input
  const free = input === 0 && output === 0 && cachedInput === 0
  // Every call has input, so this server did not count, and the cost is unknown.
  if (inputTokens === 0 && outputTokens === 0 && !free) return undefined
  const cached = Math.min(cachedTokens, inputTokens)
  const microcents = (inputTokens - cached) * input + cached * cachedInput + outputTokens * output
  return Math.round(microcents) / microcentsPerCent
}

/** What is charged in addition to model calls, in microcents. */
export interface ServicePrices {
  readonly toolCall: number
  readonly sandboxSecond: number
  /** The price of one stored GiB for one day. */
  readonly storedGibDay: number
}

/** The costs of use, from the operator's price table and, where it has no entry, the public one. */
export interface Prices {
  /** The version of these tables. Charges record the version by which they were made. */
  readonly version: string
  readonly services: ServicePrices
  /** The current price of `provider/model`. Undefined: unknown, which does not mean free. */
  priceOf(model: string): ModelPrice | undefined
  /**
   * The cost of one model call in cents, like `costOf`, by the prices at the time of the call, by default now. Also undefined when the model has no
   * known price.
   */
  costCents(usage: Usage, at?: Date): number | undefined
}
export const Prices = capability<Prices>('conductor.prices')
