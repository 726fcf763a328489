import type { App } from '#kernel'
import { vfsWire } from '#contracts/wire/vfs'
import { serve } from '#kit'
import type { Audit } from './audit.ts'
import type { Callers } from './proof.ts'
import type { Sessions } from './sessions.ts'

interface Parts {
  readonly sessions: Sessions
  readonly audit: Audit
  /** Deletes some of all that is kept of a tenant. */
  erase(tenantId: string): Promise<{ deleted: number; more: boolean }>
}

/** Leases of sessions, what they did, and what a tenant has here. */
export function sessionRoutes(app: App, callers: Callers, { sessions, audit, erase }: Parts): void {
  serve(
    app,
    vfsWire.sessions,
    async ({ caller, query: { cursor = '', limit = 100 } }) => ({
      json: await sessions.list(caller.tenantId, cursor, limit),
    }),
    callers,
  )
  serve(
    app,
    vfsWire.openSession,
    async ({ caller, params, body }) => ({ json: await sessions.open(caller.tenantId, params.id, body) }),
    callers,
  )
  serve(
    app,
    vfsWire.session,
    async ({ caller, params }) => ({ json: await sessions.show(caller.tenantId, params.id) }),
    callers,
  )
  serve(
    app,
    vfsWire.closeSession,
    async ({ caller, params }) => {
      if (await sessions.close(caller.tenantId, params.id)) await audit.rest(caller.tenantId, params.id)
    },
    callers,
  )
  serve(
    app,
    vfsWire.audit,
    async ({ caller, params, query: { cursor, limit = 100 } }) => {
      const before = cursor === undefined ? Infinity : Number(cursor)
      const found = await audit.read(caller.tenantId, params.id, before, limit)
      if (found) return { json: found }
      // Open, and has done nothing yet.
      await sessions.show(caller.tenantId, params.id)
      return { json: { entries: [] } }
    },
    callers,
  )
  serve(app, vfsWire.usage, async ({ caller }) => ({ json: await sessions.usage(caller.tenantId) }), callers)
  serve(app, vfsWire.erase, async ({ caller }) => ({ json: await erase(caller.tenantId) }), callers)
}
