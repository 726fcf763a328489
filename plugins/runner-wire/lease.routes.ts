import { type TSchema, Type } from '@sinclair/typebox'
import { access, type App, failure } from '#kernel'
import { type RunnerService, VfsLease, WorkerLease } from '#contracts/runner'
import { noSandboxWorker, noVfsSession } from './errors.ts'
import { Invalidated, InvalidateSandbox, OptionalTenantHeaders, SessionParams, TenantHeaders } from './schema.ts'
import { optionalTenantOf, tenantOf } from './tenant.ts'

const tags = ['leases']

/**
 * What sessions hold outside of this runner. The leases of all tenants are asked for without a tenant. Of the VirtualFS, which
 * has no manager here, the answers are the contract's for that case.
 */
export function leaseRoutes(app: App, core: RunnerService): void {
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
  app.get('/runner/worker/leases', list('List sandbox workers', WorkerLease), async (request) => {
    const leases = await core.workerLeases(optionalTenantOf(request))
    return leases.toSorted((a, b) => (a.sessionId < b.sessionId ? -1 : 1))
  })
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
    async (request) => {
      const lease = await core.workerLease(tenantOf(request), request.params.id)
      if (!lease) throw noSandboxWorker()
      return lease
    },
  )
  app.post(
    '/runner/sandbox-events/invalidate',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Forget what is known of a sandbox',
        description: 'Its provider said that it changed. 0 is normal: another runner has it.',
        body: InvalidateSandbox,
        response: { 200: Invalidated },
      },
    },
    async (request) => {
      const { provider, sandboxId } = request.body
      return { invalidated: await core.invalidateSandbox(provider, sandboxId) }
    },
  )
}
