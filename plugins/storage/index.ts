import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { AuditLog, type AuditTrail } from '#contracts/audit'
import { ApiGuard } from '#contracts/auth'
import { Database, presentDatabase } from '#contracts/database'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { ReservedObjects } from '#contracts/linked-objects'
import { type ObjectBackend, ObjectBackends, objectErrors, ObjectStore } from '#contracts/object-store'
import { ObjectWrites } from '#contracts/object-writes'
import { TenantData } from '#contracts/retention'
import { CheckedStore, noStore, pacedReads, reservedArea, visibleArea } from './store.ts'
import { MemoryCounter, PostgresCounter } from './counters.ts'
import { Metrics } from './metrics.ts'
import { readRoutes, writeRoutes } from './routes.ts'
import { type Counter, Usage } from './usage.ts'

/**
 * Objects of tenants, in the backend of the role: routes on a conductor, and the store for other plugins. The metadata of an object is stored with
 * it, so a role needs no database. Specification 4.16.
 */
export default definePlugin({
  name: 'storage',
  config: Settings({
    backend: Type.Optional(
      Type.String({ description: 'Which backend, e.g. disk or s3; the one that is configured by default.' }),
    ),
    recountEvery: Duration(
      '10m',
      'Without a database the usage of a tenant is counted in memory, and counted anew in the store at a write after this time.',
    ),
  }),
  errors: [objectErrors, limitErrors],
  requires: {
    backends: ObjectBackends,
    database: maybe(Database),
    guard: maybe(ApiGuard),
    limits: maybe(TenantLimits),
    trail: maybe(AuditLog),
  },
  provides: { store: ObjectStore, reserved: ReservedObjects, writes: ObjectWrites, data: TenantData },
  async setup({ config, deps, metrics, routes, listeners }) {
    const { backends, guard, limits, trail } = deps
    const name = chosen([...backends.keys()], config.backend)
    const backend = name === undefined ? undefined : backends.get(name)
    const database = presentDatabase(deps.database)
    let all: ObjectStore = noStore
    let counter: Counter | undefined
    if (name !== undefined && backend) {
      await refuseMisconfigured(name, backend)
      const counting = database
        ? new PostgresCounter(database, backend)
        : new MemoryCounter(backend, config.recountEvery)
      const used = (tenantId: string) => counting.of(tenantId).catch(() => undefined)
      limits?.uses('objects', async (tenantId) => (await used(tenantId))?.objects)
      limits?.uses('objectBytes', async (tenantId) => (await used(tenantId))?.bytes)
      all = new CheckedStore(name, backend, new Usage(counting, limits, database !== undefined), new Metrics(metrics))
      counter = counting
    }
    const store = visibleArea(all)
    if (guard && listeners.includes('conductor')) {
      routes('conductor', async (app) => {
        guard.protect(app)
        readRoutes(app, guard, limits ? pacedReads(store, limits) : store)
        writeRoutes(app, guard, store)
      })
    }
    return {
      store,
      reserved: reservedArea(all),
      writes: { noted: (...noted) => noteWrites({ trail, counter }, ...noted) },
      data: counter
        ? {
            objects: {
              erase: (tenantId, signal) => all.removeAll(tenantId, '', signal),
              recount: (tenantId) => counter.recount(tenantId),
            },
          }
        : {},
    }
  },
})

/** A backend that is known to be misconfigured fails the start of the server, rather than the first upload. */
async function refuseMisconfigured(name: string, backend: ObjectBackend): Promise<void> {
  await backend.verify?.().catch((cause: Error) => {
    throw new Error(`the storage backend '${name}' is misconfigured: ${cause.message}`, { cause })
  })
}

interface NoteParts {
  /** Undefined in a role that records no audit log. */
  readonly trail: AuditTrail | undefined
  readonly counter: Counter | undefined
}

/** Counts writes of agents for the limits of their tenant, and records them in the tenant's audit log with their run. */
async function noteWrites(
  { trail, counter }: NoteParts,
  ...[{ tenantId, runId }, writes]: Parameters<ObjectWrites['noted']>
): Promise<void> {
  const bytes = writes.reduce((sum, write) => sum + write.bytes, 0)
  const objects = writes.reduce((sum, write) => sum + write.objects, 0)
  if (bytes !== 0 || objects !== 0) await counter?.add(tenantId, { bytes, objects })
  for (const { action, key } of writes) {
    const entry = await trail?.begin({ tenantId, actor: { keyId: runId, role: 'agent' }, action, target: key })
    if (entry) await trail!.end(entry, { status: action === 'storage.put' ? 200 : 204 })
  }
}

function chosen(configured: readonly string[], wanted: string | undefined): string | undefined {
  if (wanted !== undefined) {
    if (configured.includes(wanted)) return wanted
    throw new Error(`the storage backend '${wanted}' is not configured; these are: ${configured.join(', ') || 'none'}`)
  }
  if (configured.length > 1) {
    throw new Error(`several storage backends are configured (${configured.join(', ')}): choose one with \`backend\``)
  }
  return configured[0]
}
