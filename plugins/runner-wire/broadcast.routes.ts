import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import { BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { RunnerService } from '#contracts/runner'
import { TenantHeaders } from './schema.ts'
import { tenantOf } from './tenant.ts'

const tags = ['broadcast']
/** A page is about 1 MiB, and at least one profile, which can be as large as its conductor's largest body twice over. */
const maxPageBytes = 8 * 1024 * 1024

/** Profiles and pools as conductors keep runners up to date with them. */
export function broadcastRoutes(app: App, core: RunnerService): void {
  app.post(
    '/runner/broadcast',
    {
      ...access('network'),
      bodyLimit: maxPageBytes,
      schema: {
        tags,
        summary: "Take a page of a tenant's changes",
        description:
          'Changes nothing unless this runner has everything up to `after`. The answer says how far it has followed the tenant now; the caller goes on from there.',
        headers: TenantHeaders,
        body: BroadcastPage,
        response: { 200: Type.Object({ revision: Type.Integer() }) },
      },
    },
    async (request) => ({ revision: await core.takeBroadcast(tenantOf(request), request.body) }),
  )

  app.post(
    '/runner/broadcast/behind',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Name the tenants this runner is behind with',
        description: 'Those of the given tenants of which this runner has less than the given revision.',
        body: Type.Object({ revisions: BroadcastRevisions }),
        response: { 200: Type.Object({ tenants: Type.Array(Type.String()) }) },
      },
    },
    async (request) => ({ tenants: await core.behind(request.body.revisions) }),
  )
}
