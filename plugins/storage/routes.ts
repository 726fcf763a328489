import { Readable } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failures, invalidField, negotiated, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import {
  maxObjectBytes,
  type ObjectBody,
  objectErrors,
  type ObjectStore,
  type OpenObject,
} from '#contracts/object-store'
import { isKnown, quoted, sendBody, sendFile, withoutBody } from '#kit/files'
import { cursorOf, InlineObject, KeyParams, ListQuery, ObjectList, placeOf, shown, StorageInfo } from './schema.ts'

export const tags = ['storage']
/** Errors of every route of objects. */
export const usual = [
  objectErrors.invalidKey,
  objectErrors.storageUnavailable,
  objectErrors.storageMisconfigured,
  objectErrors.storageNotConfigured,
]

/** Routes that read objects, for every member. */
export function readRoutes(app: App, guard: Guard, store: ObjectStore): void {
  app.get(
    '/api/storage',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Show the object store',
        description: 'Always 200, also if this server has none.',
        response: { 200: StorageInfo },
      },
    },
    async () => ({
      configured: store.backend !== undefined,
      ...(store.backend === undefined ? {} : { backend: store.backend }),
      maxObjectBytes,
    }),
  )
  app.get(
    '/api/storage/objects',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List objects',
        description: 'In the order of the UTF-8 of their keys.',
        querystring: ListQuery,
        response: { 200: ObjectList, ...failures(...usual) },
      },
    },
    async (request) => {
      const { prefix, delimiter, cursor, limit } = request.query
      const after = cursor === undefined ? '' : placeOf(cursor)
      if (after === undefined) throw invalidField('querystring/cursor', 'is no cursor of this list; begin without it')
      const query = { prefix, after, limit, folders: delimiter !== undefined }
      const { objects, prefixes, next } = await store.list(guard.callerOf(request).tenantId, query)
      return {
        objects: objects.map(shown),
        prefixes: [...prefixes],
        ...(next === undefined ? {} : { cursor: cursorOf(next) }),
      }
    },
  )
  app.get(
    '/api/storage/objects/*',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get an object',
        description:
          'As JSON with its content if `Accept` is absent, `*/*` or names `application/json`, and there is no `Range`; otherwise its bytes, whole or a `Range`. With `ETag` and `If-None-Match`.',
        params: KeyParams,
        response: {
          200: negotiated('The object.', {
            'application/json': InlineObject,
            'application/octet-stream': Type.String({ format: 'binary', description: 'Of the type that it has.' }),
          }),
          206: negotiated('The bytes of the `Range`.', {
            'application/octet-stream': Type.String({ format: 'binary' }),
          }),
          304: Type.Unsafe<undefined>({ type: 'null', description: 'It matches `If-None-Match`.' }),
          ...failures(notFound, objectErrors.rangeNotSatisfiable, ...usual),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const key = request.params['*']
      const found = await store.open(tenantId, key)
      if (!found) throw notFound({ message: 'No object has this key.' })
      void reply.headers({ etag: quoted(found.info.etag), vary: 'accept', 'cache-control': 'private, no-cache' })
      return wantsInline(request)
        ? sendInline(request, reply, found, () => store.open(tenantId, key))
        : sendFile(request, reply, found)
    },
  )
}

/** True if the caller gets the object inside JSON, which is the default. A request for a range gets bytes. */
const wantsInline = ({ headers: { accept, range } }: FastifyRequest): boolean =>
  range === undefined &&
  (accept === undefined || accept.trim() === '*/*' || /(^|,)\s*application\/json\s*(;|,|$)/i.test(accept))

/** Sends the object inside one JSON document. The encoding must be known before the first byte is sent, so the content is read twice. */
async function sendInline(
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

/** True if all bytes together are valid UTF-8. */
async function isUtf8(body: ObjectBody): Promise<boolean> {
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

/** One JSON document whose last field is the content. It is produced while the bytes arrive, so a large object is never completely in memory. */
async function* inlineDocument(
  fields: Readonly<Record<string, unknown>>,
  encoding: 'utf8' | 'base64',
  body: ObjectBody,
): AsyncGenerator<string> {
  yield `${JSON.stringify({ ...fields, encoding }).slice(0, -1)},"content":"`
  // Encodings can split between chunks, so the decoder keeps the remainder: part of a character in UTF-8, or fewer than three bytes in base64.
  const decoder = new StringDecoder(encoding)
  const escaped = encoding === 'utf8' ? (text: string) => JSON.stringify(text).slice(1, -1) : (text: string) => text
  for await (const chunk of body)
    yield escaped(decoder.write(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)))
  yield `${escaped(decoder.end())}"}`
}
