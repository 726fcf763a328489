import type { LanguageModelV4CallOptions } from '@ai-sdk/provider'
import type { OutputSchemas } from '#kit/schemas'
import type { ResponseFormat } from '#contracts/prompt'

/** The form that the answer of a run must have. */
export interface OutputForm {
  /** The form as the provider takes it, which passes it on where its model supports it. */
  readonly asked: NonNullable<LanguageModelV4CallOptions['responseFormat']>
  /** The value that an answer holds, or a sentence for its model that says why it does not do. */
  read(answer: string): Promise<{ readonly value: unknown } | { readonly problem: string }>
}

type JsonFormat = Extract<LanguageModelV4CallOptions['responseFormat'], { type: 'json' }>

/** Rejects with AppError `invalid_response_format`. */
export async function createOutputForm(
  { name, description, schema }: ResponseFormat,
  tenantId: string,
  schemas: OutputSchemas,
): Promise<OutputForm> {
  const { problem } = await schemas(tenantId, schema)
  const complaint = (why: string): { problem: string } => ({
    problem: `Your answer does not fit. ${why} Answer again with nothing but one JSON value that fits this JSON Schema: ${JSON.stringify(schema)}`,
  })
  return {
    asked: {
      type: 'json',
      schema: schema as NonNullable<JsonFormat['schema']>,
      ...(name === undefined ? {} : { name }),
      ...(description === undefined ? {} : { description }),
    },
    async read(answer) {
      let value: unknown
      try {
        value = JSON.parse(unfenced(answer))
      } catch {
        return complaint('It is not JSON.')
      }
      const wrong = await problem(value)
      return wrong === undefined ? { value } : complaint(wrong)
    },
  }
}

/** Models that know no response format like to put JSON into a code block. */
const unfenced = (text: string): string => /^\s*```(?:json)?\n([^]*?)\n?```\s*$/.exec(text)?.[1] ?? text
