import type { Attachment } from '#contracts/prompt'
import { unsupportedAttachment } from './errors.ts'
import type { UserInput } from './protocol.ts'

/** What vendors' models look at; of another image Codex would tell the model only that there was one. */
const image = /^image\/(?:png|jpeg|gif|webp)$/
/** Forms that every model can read as they are. */
const text =
  /^text\/|^application\/(?:json|ndjson|x-ndjson|xml|yaml|x-yaml|toml|sql|javascript|csv)$|\+(?:json|xml|yaml)$/

/** A prompt and what goes with it; `more` is said last. Throws AppError `unsupported_attachment`. */
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
  throw unsupportedAttachment({
    message: `runtime_b takes texts and images (PNG, JPEG, GIF, WebP) as attachments, and not ${mediaType}.`,
  })
}

const textInput = (content: string): UserInput => ({ type: 'text', text: content, text_elements: [] })
