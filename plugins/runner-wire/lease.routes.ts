import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import { noSandboxWorker, noVfsSession } from './errors.ts'
import { OptionalTenantHeaders, SessionParams, TenantHeaders } from './schema.ts'

const none = Type.Array(Type.Unknown(), { maxItems: 0 })

/**
 * Leases of a runner that has neither a VFS manager nor a worker substrate: the contract's answers for that case. The
 * leases of all tenants are asked for without a tenant (the conductor's fan-out).
 */
export function leaseRoutes(app: App): void {
  const list = { ...access('network'), schema: { headers: OptionalTenantHeaders, response: { 200: none } } }
  const one = { ...access('network'), schema: { headers: TenantHeaders, params: SessionParams } }
  app.get('/runner/vfs/leases', list, async () => [])
  app.get('/runner/worker/leases', list, async () => [])
  app.get('/runner/sessions/:id/vfs-lease', one, async () => {
    throw noVfsSession()
  })
  app.get('/runner/sessions/:id/worker', one, async () => {
    throw noSandboxWorker()
  })
}
