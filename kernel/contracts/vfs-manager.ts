import { capability } from '../plugin.ts'
import type { VfsLease } from './leases.ts'
import type { RunnerSession } from './runner.ts'
import type { SessionVfs } from './session-vfs.ts'

/** The leases that the sessions of a runner have on the VirtualFS server. */
export interface VfsManager {
  /** Undefined: its profile does not use the VirtualFS. */
  of(session: RunnerSession): SessionVfs | undefined
  /** As this runner knows them, by session id; of all tenants when none is named. */
  leases(tenantId: string | undefined): readonly VfsLease[]
  /** As the server has it now. Undefined when the session has none. */
  lease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<VfsLease | undefined>
  /** The session left the memory of this runner and may come back: the server keeps its files for a while. */
  forget(tenantId: string, sessionId: string): void
  /** The session has ended, wherever its lease was opened: deletes its own files. Never rejects. */
  close(tenantId: string, sessionId: string): Promise<void>
}
export const VfsManager = capability<VfsManager>('runner.vfs-manager')
