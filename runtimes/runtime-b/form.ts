import type { OutputSchema, OutputSchemas } from '#contracts/output-schema'
import type { ResponseFormat } from '#contracts/prompt'
import { isStrictSchema } from '#contracts/strict-schema'
import { invalidOutput } from './errors.ts'

/** The form that the answer of a run must have. */
export interface Form {
  /** For Codex, which passes it on as strict; then the vendor refuses what it does not take so. */
  readonly schema: object | undefined
  /** What the model is told in its place. */
  readonly instruction: string | undefined
  /** The value that an answer holds. Throws AppError `invalid_output`. */
  read(answer: string): unknown
}

/** Throws AppError `invalid_response_format`. */
export function createForm({ schema }: ResponseFormat, schemas: OutputSchemas): Form {
  const checked: OutputSchema = schemas(schema)
  const strict = isStrictSchema(schema)
  return {
    schema: strict ? schema : undefined,
    instruction: strict
      ? undefined
      : `Answer with nothing but one JSON value that fits this JSON Schema: ${JSON.stringify(schema)}`,
    read(answer) {
      let output: unknown
      try {
        output = JSON.parse(unfenced(answer))
      } catch (cause) {
        throw invalidOutput({ cause, message: 'The answer is not JSON.' })
      }
      const problem = checked.problem(output)
      if (problem !== undefined) throw invalidOutput({ message: `The answer does not fit its form. ${problem}` })
      return output
    },
  }
}

/** Models that are only told like to put JSON into a code block. */
const unfenced = (text: string): string => /^\s*```(?:json)?\n([^]*?)\n?```\s*$/.exec(text)?.[1] ?? text
