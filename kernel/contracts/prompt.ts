import { type Static, Type } from '@sinclair/typebox'

/** Base64 characters of all attachments of a run together: 4 MiB of content, well inside every hop's body limit. */
export const maxAttachmentChars = Math.ceil((4 * 1024 * 1024) / 3) * 4

/** An image or a file that goes with a prompt. Inline only: an address would make some hop fetch what a tenant names. */
export const Attachment = Type.Object(
  {
    mediaType: Type.String({
      pattern: '^[a-z]+/[a-zA-Z0-9.+-]{1,100}$',
      description: 'e.g. `image/png`, `application/pdf`.',
    }),
    // It has no bounds of length: for them Ajv would count the characters of megabytes at every hop.
    data: Type.String({
      pattern: '^[A-Za-z0-9+/]',
      description: 'Base64; 4 MiB of content in all attachments together.',
    }),
    name: Type.Optional(Type.String({ maxLength: 255 })),
  },
  { additionalProperties: false },
)
export type Attachment = Static<typeof Attachment>

const base64 = /^[A-Za-z0-9+/]+={0,2}$/
/** Checked once, where a run is submitted. */
export const isBase64 = (data: string): boolean => data.length % 4 === 0 && base64.test(data)

/** The form that the answer of a run must have. */
export const ResponseFormat = Type.Object(
  {
    type: Type.Literal('json_schema'),
    name: Type.Optional(Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' })),
    description: Type.Optional(Type.String({ maxLength: 2_000 })),
    schema: Type.Record(Type.String(), Type.Unknown(), { description: 'A JSON Schema, draft 2020-12 or 07.' }),
  },
  { additionalProperties: false },
)
export type ResponseFormat = Static<typeof ResponseFormat>

/** Fields of a run's prompt beside its text, on their way to whoever executes it. */
export const promptFields = {
  attachments: Type.Optional(Type.Array(Attachment, { maxItems: 20 })),
  responseFormat: Type.Optional(ResponseFormat),
}
export type PromptFields = { attachments?: Attachment[]; responseFormat?: ResponseFormat }

/** The same fields as a summary shows them, without content: summaries are listed by the hundred. */
export const promptInfoFields = {
  attachments: Type.Optional(
    Type.Array(Type.Object({ mediaType: Type.String(), name: Type.Optional(Type.String()), bytes: Type.Integer() }), {
      description: 'Without their content, which is kept until the run has ended.',
    }),
  ),
  responseFormat: Type.Optional(
    Type.Object(
      { type: Type.Literal('json_schema'), name: Type.Optional(Type.String()) },
      { description: 'Without its schema.' },
    ),
  ),
}
export type PromptInfo = {
  attachments?: { mediaType: string; name?: string; bytes: number }[]
  responseFormat?: Pick<ResponseFormat, 'type' | 'name'>
}

/** The fields of a task that go beside its text, alone. Undefined when it has none. */
export function promptFieldsOf({ attachments, responseFormat }: PromptFields): PromptFields | undefined {
  if (!attachments?.length && !responseFormat) return undefined
  return { ...(attachments?.length ? { attachments } : {}), ...(responseFormat ? { responseFormat } : {}) }
}

export function promptInfoOf({ attachments, responseFormat }: PromptFields): PromptInfo {
  return {
    ...(attachments?.length ? { attachments: attachments.map(infoOf) } : {}),
    ...(responseFormat ? { responseFormat: formatInfoOf(responseFormat) } : {}),
  }
}

/** How many bytes base64 stands for. */
export const bytesOfBase64 = (data: string): number =>
  (data.length * 3) / 4 - (data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0)

const infoOf = ({ mediaType, name, data }: Attachment) => ({
  mediaType,
  ...(name === undefined ? {} : { name }),
  bytes: bytesOfBase64(data),
})
const formatInfoOf = ({ type, name }: ResponseFormat) => ({ type, ...(name === undefined ? {} : { name }) })
