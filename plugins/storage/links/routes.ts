import { Type } from '@sinclair/typebox'
import { access, type App, failures, negotiated, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { isClientId } from '#contracts/ids'
import { objectErrors } from '#contracts/object-store'
import { quoted, sendFile } from '#kit/files'
import type { PostgresLinks } from './store.ts'

const ObjectParams = Type.Object({
  id: Type.String({ description: 'Id of the run.' }),
  sha256: Type.String({ description: 'SHA-256 of the content in hex, as the run or its log shows it.' }),
})

/** What a run has in the object store, for whoever may read the run. */
export function downloadRoute(app: App, guard: Guard, store: PostgresLinks | undefined): void {
  app.get(
    '/api/runs/:id/objects/:sha256',
    {
      ...access('member'),
      schema: {
        tags: ['runs'],
        summary: 'Get a large content of a run',
        description:
          'An attachment, or the whole result of a tool that its event shows the beginning of: the bytes, with `Range` and `ETag`. It is kept for as long as the run.',
        params: ObjectParams,
        response: {
          200: negotiated('The bytes.', {
            'application/octet-stream': Type.Unsafe<unknown>(Type.String({ format: 'binary' })),
          }),
          ...failures(notFound, objectErrors.rangeNotSatisfiable, objectErrors.storageUnavailable),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id, sha256 } = request.params
      const known = store && isClientId(id) && /^[0-9a-f]{64}$/.test(sha256)
      const found = known ? await store.openOf(tenantId, id, sha256) : undefined
      if (!found) throw notFound()
      void reply.header('etag', quoted(found.info.etag))
      return sendFile(request, reply, found)
    },
  )
}
