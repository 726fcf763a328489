import type { FastifyBaseLogger } from 'fastify'
import { overLimit } from '#contracts/limits'
import type { RunnerSession } from '#contracts/runner'
import type { Sandbox } from './sandbox.ts'
import type { SessionWorker, WorkerTable } from './session-worker.ts'
import type { Substrate } from './substrates.ts'

/** Counting may use one part in this many of the time, so the pauses grow for a tenant with very many files. */
const busyPart = 10
/** How many tenants' files are counted at once, so that one tenant does not delay the others. */
const atOnce = 4
/** Running work is stopped only above this multiple of the limit, so that a tenant at its limit can still delete files. */
const slack = 1.1

interface Measured {
  readonly bytes: number
  /** The worker's phase at that time. */
  readonly phase: SessionWorker['phase']
}

interface Tenant {
  /** When the tenant's files are counted next, by `performance.now()`. */
  dueAt: number
  counting: boolean
}

/** The size of the tenants' files on disk. Files are counted in the background, and answers use the last count. */
export class Workspaces {
  readonly #table: Pick<WorkerTable, 'all'>
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly everyMs: number
  readonly #measured = new WeakMap<Sandbox, Measured>()
  readonly #tenants = new Map<string, Tenant>()

  /** `everyMs` is the least time between two counts of a tenant's files. */
  constructor(table: Pick<WorkerTable, 'all'>, everyMs: number, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#table = table
    this.everyMs = everyMs
    this.#log = log
  }

  /** The tenant's bytes; undefined when no provider of its sandboxes can count them. */
  used(tenantId: string): number | undefined {
    const sizes = this.#of(tenantId).flatMap((worker) => this.sizeOf(worker) ?? [])
    return sizes.length === 0 ? undefined : sizes.reduce((a, b) => a + b)
  }
  /** The bytes of one worker; undefined when the provider cannot count them or was not asked yet. */
  sizeOf({ withFiles }: Pick<SessionWorker, 'withFiles'>): number | undefined {
    return withFiles && this.#measured.get(withFiles)?.bytes
  }
  /** Throws 409 `limit_exceeded` when the files of its tenant have reached the limit. */
  admit({ tenantId, limits }: RunnerSession): void {
    const most = limits?.workspaceBytes
    if (most !== undefined && (this.used(tenantId) ?? 0) >= most) throw overLimit('workspaceBytes', most)
  }
  /** Starts the counts that are due. */
  look(): void {
    const now = performance.now()
    const workers = Map.groupBy(this.#table.all(), ({ session }) => session.tenantId)
    for (const [tenantId, { counting }] of this.#tenants)
      if (!counting && !workers.has(tenantId)) this.#tenants.delete(tenantId)
    let counting = [...this.#tenants.values()].filter((tenant) => tenant.counting).length
    for (const [tenantId, all] of workers) {
      if (counting >= atOnce) return
      const tenant = this.#tenants.get(tenantId) ?? { dueAt: 0, counting: false }
      this.#tenants.set(tenantId, tenant)
      const changed = all.filter((worker) => this.#mayHaveChanged(worker))
      if (tenant.counting || tenant.dueAt > now || changed.length === 0) continue
      counting++
      void this.#count(tenantId, tenant, changed)
    }
  }

  #of(tenantId: string): SessionWorker[] {
    return this.#table.all().filter(({ session }) => session.tenantId === tenantId)
  }
  #mayHaveChanged({ withFiles, phase }: SessionWorker): boolean {
    if (!withFiles?.substrate.provider.diskUsage) return false
    return phase === 'awake' || this.#measured.get(withFiles)?.phase !== phase
  }
  async #count(tenantId: string, tenant: Tenant, workers: readonly SessionWorker[]): Promise<void> {
    tenant.counting = true
    const began = performance.now()
    try {
      const grown = await this.#measure(workers)
      await this.#hold(tenantId, grown)
    } catch (err) {
      this.#log.warn({ err, tenant: tenantId }, 'the files in the sandboxes of a tenant could not be counted')
    } finally {
      const ended = performance.now()
      tenant.counting = false
      tenant.dueAt = ended + Math.max(this.everyMs, (ended - began) * busyPart)
    }
  }
  /** Resolves to the workers whose files have grown since the last count. */
  async #measure(workers: readonly SessionWorker[]): Promise<SessionWorker[]> {
    const grown: SessionWorker[] = []
    const all = workers.map((worker) => ({ worker, sandbox: worker.withFiles!, phase: worker.phase }))
    for (const [provider, some] of Map.groupBy(
      all,
      ({ sandbox }): Substrate['provider'] => sandbox.substrate.provider,
    )) {
      const sizes = await provider.diskUsage!(some.map(({ sandbox }) => sandbox.sandboxId))
      for (const { worker, sandbox, phase } of some) {
        const bytes = sizes.get(sandbox.sandboxId) ?? 0
        if (bytes > (this.#measured.get(sandbox)?.bytes ?? 0)) grown.push(worker)
        this.#measured.set(sandbox, { bytes, phase })
      }
    }
    return grown
  }
  /** Stops sandboxes that continue to write above the limit. */
  async #hold(tenantId: string, grown: readonly SessionWorker[]): Promise<void> {
    const used = this.used(tenantId) ?? 0
    for (const worker of grown) {
      const most = worker.session.limits?.workspaceBytes
      if (most === undefined || used <= most * slack || worker.phase !== 'awake') continue
      this.#log.warn(
        { tenant: tenantId, sessionId: worker.session.id, used, most },
        'a sandbox was stopped: its tenant has more files than its limit',
      )
      await worker.halt(overLimit('workspaceBytes', most))
    }
  }
}
