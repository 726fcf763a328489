import type { LanguageModelV4CallOptions } from '@ai-sdk/provider'
import type { OutputSchemas } from '#kit/schemas'
import type { ResponseFormat } from '#contracts/prompt'

/** The required form of a run's answer. */
export interface OutputForm {
  /** The response format for the provider, which forwards it if its model supports it. */
  readonly asked: NonNullable<LanguageModelV4CallOptions['responseFormat']>
  /** The value of an answer, or a sentence that tells the model why the answer is invalid. */
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
    problem: `Your answer is not valid. ${why} Answer again with only one JSON value that matches this JSON Schema: ${JSON.stringify(schema)}`,
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

/** Strips a code block: models without support for response formats often put JSON into one. */
const unfenced = (text: string): string => /^\s*```(?:json)?\n([^]*?)\n?```\s*$/.exec(text)?.[1] ?? text
