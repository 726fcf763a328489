import type { Attachment } from '#contracts/prompt'
import type { RunEnvelope } from '#contracts/run-envelope'
import { unsupportedAttachment } from './errors.ts'
import type { PromptBlock } from './sdk.ts'

const image = /^image\/(?:png|jpeg|gif|webp)$/
/** Forms that a model can read as they are. */
const text =
  /^text\/|^application\/(?:json|ndjson|x-ndjson|xml|yaml|x-yaml|toml|sql|javascript|csv)$|\+(?:json|xml|yaml)$/

/** The prompt with what goes along. Throws AppError `unsupported_attachment` for what the vendor's models do not take. */
export const promptBlocks = ({
  prompt,
  attachments = [],
}: Pick<RunEnvelope, 'prompt' | 'attachments'>): PromptBlock[] => [
  ...attachments.map(blockOf),
  { type: 'text', text: prompt },
]

function blockOf({ mediaType, data, name }: Attachment): PromptBlock {
  const source = { type: 'base64' as const, media_type: mediaType, data }
  if (image.test(mediaType)) return { type: 'image', source }
  if (mediaType === 'application/pdf')
    return { type: 'document', source, ...(name === undefined ? {} : { title: name }) }
  if (text.test(mediaType)) {
    const content = Buffer.from(data, 'base64').toString('utf8')
    return { type: 'text', text: `File ${name ?? 'without a name'} (${mediaType}):\n${content}` }
  }
  throw unsupportedAttachment({
    message: `runtime_a takes images (PNG, JPEG, GIF, WebP), PDF and text, not ${mediaType}.`,
  })
}
