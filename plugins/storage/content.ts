import { StringDecoder } from 'node:string_decoder'
import type { ObjectBody } from '#contracts/object-store'

/** True for bytes that are UTF-8 as a whole. */
export async function isUtf8(body: ObjectBody): Promise<boolean> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  try {
    for await (const chunk of body) decoder.decode(chunk, { stream: true })
    decoder.decode()
    return true
  } catch (error) {
    if ((error as { code?: unknown }).code === 'ERR_ENCODING_INVALID_ENCODED_DATA') return false
    throw error
  }
}

/** One JSON document whose last field is the content, made as the bytes arrive: a large object is never whole in memory. */
export async function* inlineDocument(
  fields: Readonly<Record<string, unknown>>,
  encoding: 'utf8' | 'base64',
  body: ObjectBody,
): AsyncGenerator<string> {
  yield `${JSON.stringify({ ...fields, encoding }).slice(0, -1)},"content":"`
  // Both keep what is cut between two chunks: half a character, and what does not fill three bytes.
  const decoder = new StringDecoder(encoding)
  const escaped = encoding === 'utf8' ? (text: string) => JSON.stringify(text).slice(1, -1) : (text: string) => text
  for await (const chunk of body)
    yield escaped(decoder.write(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)))
  yield `${escaped(decoder.end())}"}`
}
