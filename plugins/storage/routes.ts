import { access, type App, failures, invalidField, negotiated, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { maxObjectBytes, objectErrors, type ObjectStore } from '#contracts/object-store'
import { quoted, sendFile } from '#kit/files'
import { sendInline, wantsInline } from './answers.ts'
import { cursorOf, InlineObject, KeyParams, ListQuery, ObjectList, placeOf, shown, StorageInfo } from './schema.ts'
import { Type } from '@sinclair/typebox'

export const tags = ['storage']
/** What any request of objects may be answered. */
export const usual = [objectErrors.invalidKey, objectErrors.storageUnavailable, objectErrors.storageNotConfigured]

/** Reads of objects, for every member. */
export function readRoutes(app: App, guard: Guard, store: ObjectStore): void {
  app.get(
    '/api/storage',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get what the object store is',
        description: 'Always 200, also where this server has none.',
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
          'As JSON with its content where `Accept` is absent, `*/*` or names `application/json`, and there is no `Range`; else its bytes, whole or a `Range` of them. With `ETag` and `If-None-Match`.',
        params: KeyParams,
        response: {
          200: negotiated('The object.', {
            'application/json': InlineObject,
            'application/octet-stream': Type.String({ format: 'binary', description: 'Of the type that it has.' }),
          }),
          206: negotiated('The bytes of the `Range`.', {
            'application/octet-stream': Type.String({ format: 'binary' }),
          }),
          304: Type.Unsafe<undefined>({ type: 'null', description: 'It is the one that `If-None-Match` names.' }),
          ...failures(notFound, objectErrors.rangeNotSatisfiable, ...usual),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const key = request.params['*']
      const found = await store.open(tenantId, key)
      if (!found) throw notFound()
      void reply.headers({ etag: quoted(found.info.etag), vary: 'accept', 'cache-control': 'private, no-cache' })
      return wantsInline(request)
        ? sendInline(request, reply, found, () => store.open(tenantId, key))
        : sendFile(request, reply, found)
    },
  )
}
