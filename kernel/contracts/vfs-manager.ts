import { capability } from '../plugin.ts'
import type { VfsLease } from './leases.ts'
import type { RunnerSession } from './runner.ts'
import type { SessionVfs } from './session-vfs.ts'

/** The leases of a runner's sessions on the VirtualFS server. */
export interface VfsManager {
  /** Undefined: the session's profile does not use the VirtualFS. */
  of(session: RunnerSession): SessionVfs | undefined
  /** The leases that this runner knows, by session id. Without a tenant, those of all tenants. */
  leases(tenantId: string | undefined): readonly VfsLease[]
  /** The lease as the server has it now. Undefined when the session has none. */
  lease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<VfsLease | undefined>
  /** Called when the session left the memory of this runner and may come back. The server keeps its files for a while. */
  forget(tenantId: string, sessionId: string): void
  /** Called when the session has ended, wherever its lease was opened. Deletes the session's own files. Rejects when the server was not told. */
  close(tenantId: string, sessionId: string): Promise<void>
}
export const VfsManager = capability<VfsManager>('runner.vfs-manager')
