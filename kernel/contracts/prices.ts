import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import type { Usage } from './run-event.ts'

/** Costs of single runs are far below a cent, so they are kept in millionths of one. */
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
  // Every call has input, so this server did not count: what it cost is not known either.
  if (inputTokens === 0 && outputTokens === 0 && !free) return undefined
  const cached = Math.min(cachedTokens, inputTokens)
  const microcents = (inputTokens - cached) * input + cached * cachedInput + outputTokens * output
  return Math.round(microcents) / microcentsPerCent
}

/** What is charged beside model calls, in microcents. */
export interface ServicePrices {
  readonly toolCall: number
  readonly sandboxSecond: number
  /** A day of a GiB that is stored. */
  readonly storedGibDay: number
}

/** What is used costs, from the operator's price table and the public one below it. */
export interface Prices {
  /** Names these tables: what was charged by them says so. */
  readonly version: string
  readonly services: ServicePrices
  /** The price of `provider/model` now. Undefined when none is known, which does not mean that it is free. */
  priceOf(model: string): ModelPrice | undefined
  /**
   * The cost of one model call in cents, as `costOf`, by the prices of the time at which it was made: by default now. Undefined when no
   * price is known for its model as well.
   */
  costCents(usage: Usage, at?: Date): number | undefined
}
export const Prices = capability<Prices>('conductor.prices')
