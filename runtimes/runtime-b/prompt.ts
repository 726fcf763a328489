import type { OutputSchema, OutputSchemas } from '#contracts/output-schema'
import type { Attachment, ResponseFormat } from '#contracts/prompt'
import { isStrictSchema } from '#contracts/strict-schema'
import type { UserInput } from './protocol.ts'
import { runtimeBErrors } from './errors.ts'

/** Images that vendors' models take; of any other Codex would only tell the model that there was one. */
const image = /^image\/(?:png|jpeg|gif|webp)$/
/** Media types of text that every model can read. */
const text =
  /^text\/|^application\/(?:json|ndjson|x-ndjson|xml|yaml|x-yaml|toml|sql|javascript|csv)$|\+(?:json|xml|yaml)$/

/** A prompt with its attachments; `more` comes last. Throws AppError `unsupported_attachment`. */
export const inputOf = (
  prompt: string,
  attachments: readonly Attachment[] = [],
  more: string | undefined,
): UserInput[] => [textInput(prompt), ...attachments.map(attached), ...(more === undefined ? [] : [textInput(more)])]

function attached({ mediaType, data, name }: Attachment): UserInput {
  if (image.test(mediaType)) return { type: 'image', url: `data:${mediaType};base64,${data}` }
  if (text.test(mediaType)) {
    const content = Buffer.from(data, 'base64').toString('utf8')
    return textInput(`File ${name ?? 'without a name'} (${mediaType}):\n${content}`)
  }
  throw runtimeBErrors.unsupportedAttachment({
    message: `runtime_b takes texts and images (PNG, JPEG, GIF, WebP) as attachments, and not ${mediaType}.`,
  })
}

const textInput = (content: string): UserInput => ({ type: 'text', text: content, text_elements: [] })

/** The form that the answer of a run must have. */
interface Form {
  /** The schema for Codex, which sends it as strict; undefined when the vendor would refuse it as such. */
  readonly schema: object | undefined
  /** The sentence that tells the model the form in place of `schema`. */
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
        throw runtimeBErrors.invalidOutput({ cause, message: 'The answer is not JSON.' })
      }
      const problem = checked.problem(output)
      if (problem !== undefined)
        throw runtimeBErrors.invalidOutput({ message: `The answer does not fit its form. ${problem}` })
      return output
    },
  }
}

/** Strips a code block: models that are only told the form often put JSON into one. */
const unfenced = (text: string): string => /^\s*```(?:json)?\n([^]*?)\n?```\s*$/.exec(text)?.[1] ?? text
