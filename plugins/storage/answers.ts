import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { type ObjectBody, objectErrors, type OpenObject } from '#contracts/object-store'
import { inlineDocument, isUtf8 } from './content.ts'
import { isKnown, quoted, rangeOf } from './headers.ts'
import { shown } from './schema.ts'

/** A reader who takes nothing for so long is dropped: the file or connection behind it is not its own. */
const unreadMs = 60_000

/** Inline is what is answered to whoever asks for nothing else; a range is of bytes. */
export const wantsInline = ({ headers: { accept, range } }: FastifyRequest): boolean =>
  range === undefined &&
  (accept === undefined || accept.trim() === '*/*' || /(^|,)\s*application\/json\s*(;|,|$)/i.test(accept))

/** The bytes, in the type that they were uploaded with. A browser saves them: they may be a page that somebody wrote. */
export async function sendRaw(request: FastifyRequest, reply: FastifyReply, found: OpenObject): Promise<FastifyReply> {
  const { info } = found
  const { range: asked, 'if-range': condition } = request.headers
  void reply.headers({
    'accept-ranges': 'bytes',
    'content-disposition': 'attachment',
    'content-security-policy': "sandbox; default-src 'none'",
    'last-modified': new Date(info.updatedAt).toUTCString(),
    'x-content-type-options': 'nosniff',
  })
  if (isKnown(request.headers, info.etag)) return finish(reply.code(304), found)
  const old = condition !== undefined && condition !== quoted(info.etag)
  const range = old ? undefined : rangeOf(asked, info.bytes)
  if (range === 'none') {
    await found.close()
    throw objectErrors.rangeNotSatisfiable({ headers: { 'content-range': `bytes */${info.bytes}` } })
  }
  void reply.headers({
    'content-type': info.contentType,
    'content-length': range ? range.to - range.from + 1 : info.bytes,
    ...(range ? { 'content-range': `bytes ${range.from}-${range.to}/${info.bytes}` } : {}),
  })
  if (range) void reply.code(206)
  if (request.method === 'HEAD') return finish(reply, found)
  return send(reply, await found.read(range))
}

/** One JSON document. What the content is has to be known before its first byte is sent, so it is read twice. */
export async function sendInline(
  request: FastifyRequest,
  reply: FastifyReply,
  found: OpenObject,
  again: () => Promise<OpenObject | undefined>,
): Promise<FastifyReply> {
  const { info } = found
  if (isKnown(request.headers, info.etag)) return finish(reply.code(304), found)
  void reply.type('application/json; charset=utf-8')
  if (request.method === 'HEAD') return finish(reply, found)
  const encoding = (await isUtf8(await found.read())) ? 'utf8' : 'base64'
  const second = await again()
  if (second?.info.etag !== info.etag) {
    await second?.close()
    throw objectErrors.storageUnavailable({ message: 'The object was replaced while it was read; ask again.' })
  }
  return send(reply, Readable.from(inlineDocument(shown(info), encoding, await second.read()), { objectMode: false }))
}

async function finish(reply: FastifyReply, found: OpenObject): Promise<FastifyReply> {
  await found.close()
  // Of no text Fastify would say that it has no bytes, and HEAD says how many GET would have.
  return reply.send(Readable.from([]))
}

function send(reply: FastifyReply, body: ObjectBody): FastifyReply {
  reply.raw.setTimeout(unreadMs, () => reply.raw.destroy())
  return reply.send(body instanceof Readable ? body : Readable.from(body, { objectMode: false }))
}
