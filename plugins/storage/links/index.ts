import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Database, presentDatabase } from '#contracts/database'
import { limitErrors } from '#contracts/limits'
import { LinkedObjects, linkErrors, ReservedObjects } from '#contracts/linked-objects'
import { objectErrors } from '#contracts/object-store'
import { TenantData } from '#contracts/retention'
import { uploadRoute } from '#kit/uploads'
import { downloadRoute } from './routes.ts'
import { noLinks, PostgresLinks } from './store.ts'

/**
 * Keeps large attachments and tool results of runs in the object store, with links in the place of their content. They go with the
 * last run that has them. Without a store or a database nothing is linked.
 */
export default definePlugin({
  name: 'linked-objects',
  config: Settings({
    above: Type.Integer({
      default: 64 * 1024,
      minimum: 1024,
      description: 'Bytes of an attachment or of the result of a tool; what is larger is kept in the object store.',
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
        // The objects themselves go with all others of the tenant.
        'linked objects': {
          erase: async () => ({ deleted: 0, more: false }),
          sweep: (tenantId) => store.sweep(tenantId),
        },
      },
    }
  },
})
