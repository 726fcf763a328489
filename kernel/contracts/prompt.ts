import { type Static, Type } from '@sinclair/typebox'
import { ObjectLink } from './linked-objects.ts'

/** The most bytes of all attachments of a run together. */
export const maxAttachmentBytes = 4 * 1024 * 1024
/** The same limit in characters of base64, well below every hop's body limit. */
export const maxAttachmentChars = Math.ceil(maxAttachmentBytes / 3) * 4

const mediaTypePattern = '^[a-z]+/[a-zA-Z0-9.+-]{1,100}$'
export const attachmentType = new RegExp(mediaTypePattern)

const described = {
  mediaType: Type.String({
    pattern: mediaTypePattern,
    description: 'e.g. `image/png`, `application/pdf`.',
  }),
  // The schema has no length limit, because Ajv would count the characters of megabytes at every hop.
  data: Type.Optional(
    Type.String({
      pattern: '^[A-Za-z0-9+/]',
      description: 'Base64; 4 MiB of content in all attachments together.',
    }),
  ),
  name: Type.Optional(Type.String({ maxLength: 255 })),
}

/** An image or a file of a prompt, as a client sends it. Addresses are not accepted, because some hop would have to fetch what a tenant names. */
export const SentAttachment = Type.Object(
  {
    ...described,
    upload: Type.Optional(
      Type.String({ maxLength: 128, description: 'Id of an upload (POST /api/attachments), instead of `data`.' }),
    ),
  },
  { additionalProperties: false },
)
/** The form of an attachment on its way to the executor, in the run's row and in its conversation. Its content is inline or in the object store. */
export const CarriedAttachment = Type.Object(
  { ...described, link: Type.Optional(ObjectLink) },
  { additionalProperties: false },
)
export type Attachment = Static<typeof SentAttachment> & Static<typeof CarriedAttachment>
/** An attachment with inline content, the only form that runtimes get. */
export type InlineAttachment = Attachment & { data: string }

/** The attachments with inline content. A host fetches linked contents before it calls its runtime. */
export const inlineOf = (attachments: readonly Attachment[] = []): InlineAttachment[] =>
  attachments.filter((one): one is InlineAttachment => one.data !== undefined)

/** Image types that the models of all vendors accept. */
const commonImage = /^image\/(?:png|jpeg|gif|webp)$/
export const isCommonImage = ({ mediaType }: Attachment): boolean => commonImage.test(mediaType)

/** Text types that every model can read unchanged. */
const readable =
  /^text\/|^application\/(?:json|ndjson|x-ndjson|xml|yaml|x-yaml|toml|sql|javascript|csv)$|\+(?:json|xml|yaml)$/

/** A text file as part of the prompt's text, so that any model can read it. Undefined if the file is not text. */
export const attachedText = ({ mediaType, data, name }: InlineAttachment): string | undefined =>
  readable.test(mediaType)
    ? `File ${name ?? 'without a name'} (${mediaType}):\n${Buffer.from(data, 'base64').toString('utf8')}`
    : undefined

/** The size of the inline contents as base64, the form in which they are held. */
export const attachmentBytesOf = ({ attachments = [] }: PromptFields): number =>
  attachments.reduce((sum, { data }) => sum + (data?.length ?? 0), 0)
export const hasLinks = ({ attachments }: PromptFields): boolean =>
  attachments?.some(({ link }) => link !== undefined) ?? false

/** The tokens that vendors count for a large image. */
const imageTokens = 1_600
/** A page of a PDF is about 50 KB, 66,000 characters of base64, and 2,000 tokens. */
const fileCharsPerToken = 24
/** About as many tokens as models count for an image or a file of so many characters of base64. */
export const fileTokens = (mediaType: string, chars: number): number =>
  mediaType.startsWith('image/') ? imageTokens : chars / fileCharsPerToken
/** About as many tokens as models count for the attachments of a prompt. Those that are text are read as text, of which four bytes are a token. */
export const attachmentTokensOf = ({ attachments = [] }: PromptFields): number =>
  attachments.reduce((sum, { mediaType, data = '', link }) => {
    const bytes = link?.bytes ?? bytesOfBase64(data)
    return sum + (readable.test(mediaType) ? bytes / 4 : fileTokens(mediaType, (bytes / 3) * 4))
  }, 0)

/** Decodes base64. Undefined for other text. Decoding megabytes costs a tenth of checking each character. */
export function decodeBase64(data: string): Buffer | undefined {
  const bytes = Buffer.from(data, 'base64')
  // Compare lengths, because Node ignores characters that are not base64 and accepts the other alphabet too.
  const whole = data.length % 4 === 0 && bytes.length === bytesOfBase64(data)
  return whole && !data.includes('-') && !data.includes('_') ? bytes : undefined
}

/** The required form of a run's answer. */
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

/** The fields of a run's prompt besides its text, on their way to the executor. */
export const promptFields = {
  attachments: Type.Optional(Type.Array(CarriedAttachment, { maxItems: 20 })),
  responseFormat: Type.Optional(ResponseFormat),
}
/** These fields as a client sends them. */
export const sentPromptFields = {
  ...promptFields,
  attachments: Type.Optional(Type.Array(SentAttachment, { maxItems: 20 })),
}
export type PromptFields = { attachments?: Attachment[]; responseFormat?: ResponseFormat }

/** These fields as a summary shows them, without contents, because summaries are listed by the hundred. */
export const promptInfoFields = {
  attachments: Type.Optional(
    Type.Array(
      Type.Object({
        mediaType: Type.String(),
        name: Type.Optional(Type.String()),
        bytes: Type.Integer(),
        sha256: Type.Optional(
          Type.String({
            description:
              'Of content in the object store, which is kept with the run: GET /api/runs/{id}/objects/{sha256}.',
          }),
        ),
      }),
      { description: 'Without their content.' },
    ),
  ),
  responseFormat: Type.Optional(
    Type.Object(
      { type: Type.Literal('json_schema'), name: Type.Optional(Type.String()) },
      { description: 'Without its schema.' },
    ),
  ),
}
export type PromptInfo = {
  attachments?: { mediaType: string; name?: string; bytes: number; sha256?: string }[]
  responseFormat?: Pick<ResponseFormat, 'type' | 'name'>
}

/** The fields of a task besides its text. Undefined when it has none. */
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
const bytesOfBase64 = (data: string): number =>
  (data.length * 3) / 4 - (data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0)

const infoOf = ({ mediaType, name, data = '', link }: Attachment) => ({
  mediaType,
  ...(name === undefined ? {} : { name }),
  bytes: link?.bytes ?? bytesOfBase64(data),
  ...(link ? { sha256: link.sha256 } : {}),
})
const formatInfoOf = ({ type, name }: ResponseFormat) => ({ type, ...(name === undefined ? {} : { name }) })
