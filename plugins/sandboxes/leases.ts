import type { WorkerLease } from '#contracts/runner'
import type { SandboxState } from '#contracts/sandbox'
import { type Sandbox, stateOf } from './sandbox.ts'
import type { SessionWorker, WorkerTable } from './session-worker.ts'

/** How long an answer of a substrate is shown, unless an event of the substrate makes it stale sooner. */
const freshMs = 3_000

/** The sandboxes of sessions as their substrates have them now. */
export interface Leases {
  list(tenantId: string | undefined, signal?: AbortSignal): Promise<WorkerLease[]>
  one(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<WorkerLease | undefined>
  invalidate(provider: string, sandboxId: string): number
}

export function createLeases(table: WorkerTable, now: () => number = Date.now): Leases {
  /** Undefined as a state: the substrate could not be asked. */
  const seen = new WeakMap<Sandbox, { readonly state: SandboxState | undefined; readonly at: number }>()

  const look = async (worker: SessionWorker, sandbox: Sandbox, signal?: AbortSignal): Promise<WorkerLease['state']> => {
    const cached = seen.get(sandbox)
    if (cached && now() - cached.at < freshMs) return cached.state ?? 'unknown'
    const state = await stateOf(sandbox, signal)
    seen.set(sandbox, { state, at: now() })
    if (state) worker.observe(sandbox, state)
    return state ?? 'unknown'
  }
  const leaseOf = async (worker: SessionWorker, signal?: AbortSignal): Promise<WorkerLease | undefined> => {
    const { session, sandbox, latest, phase } = worker
    if (phase === undefined) return undefined
    const sessionId = session.id
    const lastUsedAt = new Date(worker.uses.lastAt).toISOString()
    if (phase === 'starting') return { sessionId, state: 'starting', lastUsedAt }
    const shown = (sandbox ?? latest)!
    const { template } = shown.order
    return {
      sessionId,
      state: sandbox ? await look(worker, sandbox, signal) : 'gone',
      provider: shown.substrate.name,
      sandboxId: shown.sandboxId,
      ...(template === undefined ? {} : { template }),
      launchedAt: new Date(shown.launchedAt).toISOString(),
      lastUsedAt,
      ...(shown.warm ? { warm: true } : {}),
    }
  }
  return {
    async list(tenantId, signal) {
      const wanted = table.all().filter(({ session }) => tenantId === undefined || session.tenantId === tenantId)
      const leases = await Promise.all(wanted.map((worker) => leaseOf(worker, signal)))
      return leases.filter((lease) => lease !== undefined)
    },
    async one(tenantId, sessionId, signal) {
      const worker = table.find(tenantId, sessionId)
      return worker && leaseOf(worker, signal)
    },
    invalidate(provider, sandboxId) {
      let count = 0
      for (const worker of table.all()) {
        const { sandbox } = worker
        if (sandbox?.substrate.name !== provider || sandbox.sandboxId !== sandboxId) continue
        seen.delete(sandbox)
        worker.doubt()
        count++
      }
      return count
    },
  }
}
