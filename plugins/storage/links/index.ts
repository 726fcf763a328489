import { Type } from '@sinclair/typebox'
import { access, type App, definePlugin, Duration, failures, maybe, negotiated, notFound, Settings } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database, presentDatabase } from '#contracts/database'
import { isClientId } from '#contracts/ids'
import { limitErrors } from '#contracts/limits'
import { LinkedObjects, linkErrors, ReservedObjects } from '#contracts/linked-objects'
import { objectErrors } from '#contracts/object-store'
import { TenantData } from '#contracts/retention'
import { quoted, sendFile } from '#kit/files'
import { uploadRoute } from '#kit/uploads'
import { noLinks, PostgresLinks } from './store.ts'

/**
 * Keeps large attachments and tool results of runs in the object store, and replaces their content by links. A linked object is deleted with the
 * last run that uses it. Without a store or a database nothing is linked.
 */
export default definePlugin({
  name: 'linked-objects',
  config: Settings({
    above: Type.Integer({
      default: 64 * 1024,
      minimum: 1024,
      description: 'Bytes of an attachment or a tool result; a larger one is kept in the object store.',
    }),
    uploadsFor: Duration('1d', 'How long an upload waits for a run.'),
  }),
  errors: [linkErrors, objectErrors, limitErrors],
  requires: {
    objects: ReservedObjects,
    database: maybe(Database),
    guard: maybe(ApiGuard),
  },
  provides: { links: LinkedObjects, data: TenantData },
  async setup({ config: { above, uploadsFor }, deps, log, routes, listeners }) {
    const { objects, guard } = deps
    const database = presentDatabase(deps.database)
    const store =
      database && objects.backend !== undefined
        ? new PostgresLinks(database, objects, { above, uploadMs: uploadsFor, log })
        : undefined
    if (guard && listeners.includes('conductor')) {
      routes('conductor', async (app) => {
        guard.protect(app)
        downloadRoute(app, guard, store)
        uploadRoute(app, {
          url: '/api/attachments',
          who: 'member',
          tags: ['runs'],
          links: store,
          tenantOf: (request) => guard.callerOf(request).tenantId,
        })
      })
    }
    if (!store) return { links: noLinks, data: {} }
    return {
      links: store,
      data: {
        // The linked objects are erased with all other objects of the tenant, so nothing is left to erase here.
        'linked objects': {
          erase: async () => ({ deleted: 0, more: false }),
          sweep: (tx, ask) => store.sweep(tx, ask),
        },
      },
    }
  },
})

const ObjectParams = Type.Object({
  id: Type.String({ description: 'Id of the run.' }),
  sha256: Type.String({ description: 'SHA-256 of the content in hex, as the run or its log shows it.' }),
})

/** The route that downloads linked objects of a run, for every caller who may read the run. */
function downloadRoute(app: App, guard: Guard, store: PostgresLinks | undefined): void {
  app.get(
    '/api/runs/:id/objects/:sha256',
    {
      ...access('member'),
      schema: {
        tags: ['runs'],
        summary: 'Get a linked object of a run',
        description:
          'An attachment, or the whole result of a tool whose event shows only the beginning: the bytes, with `Range` and `ETag`. An attachment is kept as long as the run shows it, a result as long as the event log does.',
        params: ObjectParams,
        response: {
          200: negotiated('The bytes.', {
            'application/octet-stream': Type.Unsafe<unknown>(Type.String({ format: 'binary' })),
          }),
          ...failures(
            notFound,
            objectErrors.rangeNotSatisfiable,
            objectErrors.storageUnavailable,
            objectErrors.storageMisconfigured,
          ),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id, sha256 } = request.params
      const known = store && isClientId(id) && /^[0-9a-f]{64}$/.test(sha256)
      const found = known ? await store.open(tenantId, id, sha256) : undefined
      if (!found) throw notFound()
      void reply.header('etag', quoted(found.info.etag))
      return sendFile(request, reply, found)
    },
  )
}
