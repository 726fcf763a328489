import { type Static, Type } from '@sinclair/typebox'

const rate = (description: string) => Type.Number({ minimum: 0, maximum: 1e9, description })

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
