import { type TSchema, Type } from '@sinclair/typebox'
import { access, type App, failure } from '#kernel'
import { VfsLease, WorkerLease } from '#contracts/runner'
import { noSandboxWorker, noVfsSession } from './errors.ts'
import { OptionalTenantHeaders, SessionParams, TenantHeaders } from './schema.ts'

const tags = ['leases']

/**
 * Leases of a runner that has neither a VFS manager nor a worker substrate: the contract's answers for that case. The
 * leases of all tenants are asked for without a tenant (the conductor's fan-out).
 */
export function leaseRoutes(app: App): void {
  const list = (summary: string, item: TSchema) => ({
    ...access('network'),
    schema: {
      tags,
      summary,
      description: "Of the tenant's sessions, by session id; of all tenants when none is named.",
      headers: OptionalTenantHeaders,
      response: { 200: Type.Array(item) },
    },
  })
  const one = (summary: string, lease: TSchema, none: string) => ({
    ...access('network'),
    schema: {
      tags,
      summary,
      headers: TenantHeaders,
      params: SessionParams,
      response: { 200: lease, 404: failure(`\`${none}\`.`) },
    },
  })
  app.get('/runner/vfs/leases', list('List VirtualFS leases', VfsLease), async () => [])
  app.get('/runner/worker/leases', list('List sandbox workers', WorkerLease), async () => [])
  app.get(
    '/runner/sessions/:id/vfs-lease',
    one('Show the VirtualFS lease of a session', VfsLease, 'no vfs session'),
    async () => {
      throw noVfsSession()
    },
  )
  app.get(
    '/runner/sessions/:id/worker',
    one('Show the sandbox worker of a session', WorkerLease, 'no sandbox worker'),
    async () => {
      throw noSandboxWorker()
    },
  )
}
