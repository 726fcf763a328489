import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { objectErrors, type OpenObject } from '#contracts/object-store'
import { isKnown, sendBody, withoutBody } from '#kit/files'
import { inlineDocument, isUtf8 } from './content.ts'
import { shown } from './schema.ts'

/** Inline is what is answered to whoever asks for nothing else; a range is of bytes. */
export const wantsInline = ({ headers: { accept, range } }: FastifyRequest): boolean =>
  range === undefined &&
  (accept === undefined || accept.trim() === '*/*' || /(^|,)\s*application\/json\s*(;|,|$)/i.test(accept))

/** One JSON document. What the content is has to be known before its first byte is sent, so it is read twice. */
export async function sendInline(
  request: FastifyRequest,
  reply: FastifyReply,
  found: OpenObject,
  again: () => Promise<OpenObject | undefined>,
): Promise<FastifyReply> {
  const { info } = found
  if (isKnown(request.headers, info.etag)) return withoutBody(reply.code(304), found)
  void reply.type('application/json; charset=utf-8')
  if (request.method === 'HEAD') return withoutBody(reply, found)
  const encoding = (await isUtf8(await found.read())) ? 'utf8' : 'base64'
  const second = await again()
  if (second?.info.etag !== info.etag) {
    await second?.close()
    throw objectErrors.storageUnavailable({ message: 'The object was replaced while it was read; ask again.' })
  }
  return sendBody(
    reply,
    Readable.from(inlineDocument(shown(info), encoding, await second.read()), { objectMode: false }),
  )
}
