import type { OutputSchemas } from '#contracts/output-schema'
import { isBase64, maxAttachmentChars } from '#contracts/prompt'
import type { SubTask } from '#contracts/runs'
import { attachmentsTooLarge, invalidAttachment } from './errors.ts'

/** Refuses what would only fail once a model is called. Throws AppError. */
export function checkPromptParts({ attachments = [], responseFormat }: SubTask, schemas: OutputSchemas): void {
  const chars = attachments.reduce((sum, { data }) => sum + data.length, 0)
  if (chars > maxAttachmentChars) throw attachmentsTooLarge()
  for (const [i, { data }] of attachments.entries()) {
    if (!isBase64(data)) throw invalidAttachment(i)
  }
  if (responseFormat) schemas(responseFormat.schema)
}
