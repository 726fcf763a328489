import { tenantHeader } from '#contracts/wire/runner'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import { unknownSession } from './errors.ts'

/** Tenant of a request whose schema requires the header. */
export const tenantOf = (request: { headers: { readonly [name: string]: unknown } }): string =>
  request.headers[tenantHeader] as string

/** Undefined: all tenants. */
export const optionalTenantOf = (request: { headers: { readonly [name: string]: unknown } }): string | undefined =>
  request.headers[tenantHeader] as string | undefined

/** The session when it is the tenant's; otherwise the one answer for foreign and unknown ids. */
export function sessionOf(sessions: RunnerSessions, tenantId: string, id: string): RunnerSession {
  const session = sessions.get(id)
  if (session?.tenantId !== tenantId) throw unknownSession()
  return session
}
