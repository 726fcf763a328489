import type { IncomingHttpHeaders } from 'node:http'
import { Type } from '@sinclair/typebox'
import type { FastifyRequest } from 'fastify'
import { access, type App, failures, httpErrors, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import { objectErrors, type ObjectStore, type Upload } from '#contracts/object-store'
import { takeStreams } from '#kit'
import { conditionOf, matchOf, quoted } from '#kit/files'
import { tags, usual } from './routes.ts'
import { Deleted, KeyParams, shown, StoredObject } from './schema.ts'

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
