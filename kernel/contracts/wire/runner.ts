import { sessionStatuses, type SessionStatus } from '../sessions.ts'

/** Tenant of a call between conductor and runner: a trusted network, so it is a plain header. Specification 4.22. */
export const tenantHeader = 'x-tenant-id'

/** Session status on the runner wire: 0 idle, 1 running, 2 errored, 3 shutdown. Specification 2.5. */
export const encodeSessionStatus = (status: SessionStatus): number => sessionStatuses.indexOf(status)
export const decodeSessionStatus = (code: number): SessionStatus | undefined => sessionStatuses[code]
