import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { ObjectBackends, objectErrors, ObjectStore } from '#contracts/object-store'
import { TenantData } from '#contracts/retention'
import { Metrics } from './metrics.ts'
import { readRoutes } from './routes.ts'
import { CheckedStore, noStore } from './store.ts'
import { Usage } from './usage.ts'
import { writeRoutes } from './write.routes.ts'

/**
 * Objects of tenants, in the backend that the role has: their routes where it is a conductor, and the store for other plugins. What
 * is known of an object is kept with it, so a role needs no database for it. Specification 4.16.
 */
export default definePlugin({
  name: 'storage',
  config: Settings({
    backend: Type.Optional(
      Type.String({ description: 'Which backend, e.g. disk or s3; the one that is configured unless given.' }),
    ),
    recountEvery: Duration(
      '10m',
      'What a tenant has is counted in memory, and counted anew in the store when it writes and this has passed.',
    ),
  }),
  errors: [objectErrors, limitErrors],
  requires: { backends: ObjectBackends, guard: maybe(ApiGuard), limits: maybe(TenantLimits) },
  provides: { store: ObjectStore, data: TenantData },
  async setup({ config, deps, metrics, routes, listeners }) {
    const { backends, guard, limits } = deps
    const name = chosen([...backends.keys()], config.backend)
    const backend = name === undefined ? undefined : backends.get(name)
    let store: ObjectStore = noStore
    if (name !== undefined && backend) {
      const usage = new Usage({ backend, limits, recountMs: config.recountEvery })
      limits?.uses('objects', async (tenantId) => (await usage.of(tenantId).catch(() => undefined))?.objects)
      limits?.uses('objectBytes', async (tenantId) => (await usage.of(tenantId).catch(() => undefined))?.bytes)
      store = new CheckedStore(name, backend, usage, new Metrics(metrics))
    }
    if (guard && listeners.includes('conductor')) {
      routes('conductor', async (app) => {
        guard.protect(app)
        readRoutes(app, guard, store)
        writeRoutes(app, guard, store)
      })
    }
    return {
      store,
      data: name === undefined ? {} : { objects: { erase: (tenantId) => store.removeAll(tenantId, '') } },
    }
  },
})

function chosen(configured: readonly string[], wanted: string | undefined): string | undefined {
  if (wanted !== undefined) {
    if (configured.includes(wanted)) return wanted
    throw new Error(`the storage backend '${wanted}' is not configured; these are: ${configured.join(', ') || 'none'}`)
  }
  if (configured.length > 1) {
    throw new Error(`several storage backends are configured (${configured.join(', ')}): say which with \`backend\``)
  }
  return configured[0]
}
