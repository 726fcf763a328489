import type { Attachment } from '#contracts/prompt'
import { type FilePart, textPart, type TextPart } from './messages.ts'

/** Forms that every model can read as they are. */
const text =
  /^text\/|^application\/(?:json|ndjson|x-ndjson|xml|yaml|x-yaml|toml|sql|javascript|csv)$|\+(?:json|xml|yaml)$/

/** What goes with a prompt, as parts of its message: text as text, so that any model can take it, all else as a file. */
export const attachmentParts = (attachments: readonly Attachment[] = []): (TextPart | FilePart)[] =>
  attachments.map(({ mediaType, data, name }) =>
    text.test(mediaType)
      ? textPart(`File ${name ?? 'without a name'} (${mediaType}):\n${Buffer.from(data, 'base64').toString('utf8')}`)
      : { type: 'file', mediaType, data: { type: 'data', data }, ...(name === undefined ? {} : { filename: name }) },
  )
