import type { CallToolResult } from '@modelcontextprotocol/client'
import type { FilePart } from '../messages.ts'

export interface ToolOutcome {
  readonly ok: boolean
  readonly content: string
  /** The images of the result. `content` has `[image]` in their place. */
  readonly images?: readonly FilePart[]
}

/** Longer results are cut, because they would fill the model's context and the memory of this process. */
export const maxResultChars = 200_000
/** The most images of one result. Vendors accept up to 5 MB for each. */
const maxImages = 8
const maxImageChars = 7_000_000

export const failed = (content: string): ToolOutcome => ({ ok: false, content })
export const unknownTool = (name: string): ToolOutcome => failed(`There is no tool '${name}'.`)

/** The result of a tool in the form that a model takes. */
export function outcomeOf(result: CallToolResult): ToolOutcome {
  const texts = result.content.map(textOf)
  if (texts.length === 0 && result.structuredContent) texts.push(JSON.stringify(result.structuredContent))
  const images = imagesOf(result)
  return { ok: result.isError !== true, content: bounded(texts.join('\n')), ...(images.length > 0 ? { images } : {}) }
}

export const bounded = (text: string): string =>
  text.length > maxResultChars ? `${text.slice(0, maxResultChars)}\n[cut after ${maxResultChars} characters]` : text

type Content = CallToolResult['content'][number]

function textOf(part: Content): string {
  if (part.type === 'text') return part.text
  if (part.type === 'resource' && 'text' in part.resource) return part.resource.text
  return part.type === 'resource_link' ? `[${part.name}: ${part.uri}]` : `[${part.type}]`
}

const imageType = /^image\/[a-zA-Z0-9.+-]{1,100}$/
const base64 = /^[A-Za-z0-9+/]+={0,2}$/

function imagesOf({ content }: CallToolResult): FilePart[] {
  const images: FilePart[] = []
  let chars = 0
  for (const part of content) {
    if (part.type !== 'image' || !imageType.test(part.mimeType) || !base64.test(part.data)) continue
    chars += part.data.length
    if (images.length === maxImages || chars > maxImageChars) break
    images.push({ type: 'file', mediaType: part.mimeType, data: { type: 'data', data: part.data } })
  }
  return images
}
