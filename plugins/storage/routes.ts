import { Readable } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'
import type { IncomingHttpHeaders } from 'node:http'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failures, httpErrors, invalidField, negotiated, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import {
  maxObjectBytes,
  type ObjectBody,
  objectErrors,
  type ObjectStore,
  type OpenObject,
  type Upload,
} from '#contracts/object-store'
import { conditionOf, isKnown, matchOf, quoted, sendBody, sendFile, withoutBody } from '#kit/files'
import { limitErrors } from '#contracts/limits'
import { takeStreams } from '#kit'
import {
  cursorOf,
  Deleted,
  InlineObject,
  KeyParams,
  ListQuery,
  ObjectList,
  placeOf,
  shown,
  StorageInfo,
  StoredObject,
} from './schema.ts'

const tags = ['storage']
/** Errors of every route of objects. */
const usual = [
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
      void reply.headers({ etag: quoted(found.info.etag), vary: 'accept' })
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

/** Writes of objects, for admins. */
export function writeRoutes(app: App, guard: Guard, store: ObjectStore): void {
  takeStreams(app)
  app.put(
    '/api/storage/objects/*',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Upload an object',
        description:
          'The body as it is, 8 MiB at most, with its `Content-Type`. It replaces an existing object, unless `If-Match` or `If-None-Match: *` forbids it. With `x-checksum-sha256`, `Content-MD5` or `Digest`, only bytes with that checksum are stored.',
        params: KeyParams,
        consumes: ['application/octet-stream'],
        body: Type.Unsafe<unknown>(Type.String({ format: 'binary', description: 'Of any type.' })),
        response: {
          200: { ...StoredObject, description: 'It replaced another one.' },
          201: { ...StoredObject, description: 'It is new.' },
          ...failures(
            objectErrors.checksumMismatch,
            objectErrors.invalidChecksum,
            objectErrors.uploadBroken,
            objectErrors.preconditionFailed,
            objectErrors.storageFull,
            httpErrors.bodyTooLarge,
            limitErrors.limitExceeded,
            ...usual,
          ),
        },
      },
      // The store checks the key, and the body is checked while it arrives. So no schema is validated here.
      validatorCompiler: () => () => true,
    },
    async (request, reply) => {
      const { headers } = request
      const length = headers['content-length']
      try {
        const { info, created } = await store.put(guard.callerOf(request).tenantId, request.params['*'], {
          body: bodyOf(request),
          bytes: length === undefined ? undefined : Number(length),
          contentType: headers['content-type'] ?? 'application/octet-stream',
          when: conditionOf(headers),
          checksums: checksumsOf(headers),
        })
        return reply
          .code(created ? 201 : 200)
          .header('etag', quoted(info.etag))
          .send(shown(info))
      } catch (error) {
        void reply.header('connection', 'close')
        throw error
      }
    },
  )
  deleteRoute(app, guard, store)
}

function deleteRoute(app: App, guard: Guard, store: ObjectStore): void {
  app.delete(
    '/api/storage/objects/*',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete an object, or all below a prefix',
        description:
          'A key that ends with `/` deletes the objects below it, 1000 at most: 200 says how many, and whether there are more. 204 for one object; with `If-Match` it is deleted only if unchanged.',
        params: KeyParams,
        response: {
          200: Deleted,
          204: Type.Unsafe<undefined>({ type: 'null', description: 'The object is gone.' }),
          ...failures(notFound, objectErrors.preconditionFailed, ...usual),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const key = request.params['*']
      if (key.endsWith('/')) return store.removeAll(tenantId, key)
      const { ifMatch } = matchOf(request.headers['if-match'])
      if (!(await store.remove(tenantId, key, ifMatch))) throw notFound({ message: 'No object has this key.' })
      return reply.code(204).send()
    },
  )
}

/** The body as it arrives, within the timeout of the listener. The connection stays open, so that a refused client gets the reason. */
const bodyOf = ({ raw }: FastifyRequest): AsyncIterable<Uint8Array> => raw.iterator({ destroyOnReturn: false })

const base64 = (text: string, bytes: number): string => {
  const read = Buffer.from(text, 'base64')
  if (read.length !== bytes || read.toString('base64') !== text) throw objectErrors.invalidChecksum()
  return read.toString('hex')
}

/** The announced digests of an upload, in hex, from x-checksum-sha256, Content-MD5, Content-Digest and Digest. */
function checksumsOf(headers: IncomingHttpHeaders): NonNullable<Upload['checksums']> {
  const own = headers['x-checksum-sha256']
  const found: { sha256?: string; md5?: string } = {}
  const add = (kind: 'sha256' | 'md5', value: string): void => {
    if (found[kind] !== undefined && found[kind] !== value) throw objectErrors.checksumMismatch()
    found[kind] = value
  }
  if (typeof own === 'string') add('sha256', /^[0-9a-fA-F]{64}$/.test(own) ? own.toLowerCase() : base64(own, 32))
  const md5 = headers['content-md5']
  if (typeof md5 === 'string') add('md5', base64(md5, 16))
  for (const header of [headers['digest'], headers['content-digest']]) {
    if (typeof header !== 'string') continue
    // The value is sha-256=…; RFC 9530 puts the value between colons.
    for (const [, name, value] of header.matchAll(/([\w-]+)=:?([A-Za-z0-9+/]+=*):?/g)) {
      if (name!.toLowerCase() === 'sha-256') add('sha256', base64(value!, 32))
      else if (name!.toLowerCase() === 'md5') add('md5', base64(value!, 16))
    }
    if (found.sha256 === undefined && found.md5 === undefined) throw objectErrors.invalidChecksum()
  }
  return found
}
