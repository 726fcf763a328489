import type { FastifyBaseLogger } from 'fastify'
import { conflict, notFound, unavailable } from '#kernel'
import type { Database } from '#contracts/database'
import { limitKinds, limitNames, type TenantLimits } from '#contracts/limits'
import type { RunStore } from '#contracts/run-store'
import { isTerminal, type RunDispatch, runStatuses } from '#contracts/runs'
import {
  type ChangeTenant,
  type CreateTenant,
  isTenantId,
  type ListQuery,
  type Tenant,
  type TenantLimit,
} from './schema.ts'
import { deleteTenant, findTenant, insertTenant, listTenants, updateTenant } from './store.ts'

const unknownTenant = notFound
const tenantExists = (id: string, deleted: boolean) =>
  conflict({
    message: deleted
      ? `The tenant '${id}' was deleted; ids are never given twice. PATCH {"deleted": false} brings it back.`
      : `There is a tenant '${id}' already.`,
  })
const undeletable = (id: string, why: string) => conflict({ message: `The tenant '${id}' cannot be deleted: ${why}.` })

/** The tenant that every installation has, and that the bootstrap key belongs to. Specification 4.2. */
const firstTenant = 'default'

/** `onDeleted` is called with a tenant whose keys no longer work, and whose runs should end. */
export function createTenantService(
  database: Database,
  limits: TenantLimits | undefined,
  onDeleted: (tenantId: string) => void,
) {
  return {
    list: (query: ListQuery) => listTenants(database, query),
    async create({ id, name = id }: CreateTenant): Promise<Tenant> {
      const tenant = await insertTenant(database, id, name)
      if (tenant) return tenant
      const taken = await findTenant(database, id)
      throw tenantExists(id, typeof taken?.deletedAt === 'string')
    },
    async find(id: string, includeDeleted: boolean): Promise<Tenant> {
      const tenant = isTenantId(id) ? await findTenant(database, id) : undefined
      if (!tenant || (tenant.deletedAt !== null && !includeDeleted)) throw unknownTenant()
      return tenant
    },
    async change(id: string, { name, deleted, limits: wanted }: ChangeTenant): Promise<Tenant> {
      const tenant = isTenantId(id) ? await updateTenant(database, id, name, deleted === false) : undefined
      if (!tenant) throw unknownTenant()
      if (!wanted) return tenant
      if (!limits) throw unavailable({ message: 'This server keeps no limits: its role file has no plugin `limits`.' })
      if (!(await limits.change(id, wanted))) throw unknownTenant()
      return { ...tenant, limits: { ...limits.ownOf(id) } as Tenant['limits'] }
    },
    /** Every limit of the caller's own tenant, with what it uses of it. */
    async limitsOf(id: string): Promise<TenantLimit[]> {
      if (!limits) return []
      const [max, own, used] = [limits.of(id), limits.ownOf(id), await limits.usedBy(id)]
      return limitNames.map((name) => ({
        name,
        max: max[name],
        ...(used[name] === undefined ? {} : { used: used[name] }),
        unit: limitKinds[name].unit,
        own: own[name] !== undefined,
        about: limitKinds[name].about,
      }))
    },
    /** Marks the tenant as deleted and erases nothing. Its keys stop working. `own` is the caller's tenant, which cannot be deleted. */
    async remove(id: string, own: string): Promise<void> {
      if (id === firstTenant) throw undeletable(id, 'every installation has it')
      if (id === own) throw undeletable(id, 'tenants are managed from it')
      if (!isTenantId(id) || !(await deleteTenant(database, id))) throw unknownTenant()
      onDeleted(id)
    },
  }
}
export type TenantService = ReturnType<typeof createTenantService>

/** How many runs are cancelled at once, so that a large tenant does not flood the conductor. */
const together = 50

/**
 * Cancels what a deleted tenant has under way, behind the answer. When it fails the runs end by themselves; new ones cannot
 * start, because no key of the tenant works.
 */
export function createRunCanceller(
  store: Pick<RunStore, 'listRuns'>,
  runs: Pick<RunDispatch, 'cancel'>,
  log: Pick<FastifyBaseLogger, 'warn'>,
  stopping: AbortSignal,
) {
  const under = new Set<Promise<void>>()
  const cancel = async (tenantId: string): Promise<void> => {
    // Waiting runs are cancelled first: the end of a running one would let the next one start.
    for (const status of runStatuses.filter((one) => !isTerminal(one))) {
      while (!stopping.aborted) {
        const { items: open } = await store.listRuns(tenantId, { status, limit: together })
        if (open.length === 0) break
        await Promise.all(open.map(({ runId }) => runs.cancel(tenantId, runId)))
      }
    }
  }
  return {
    cancelAll(tenantId: string): void {
      const work = cancel(tenantId)
        .catch((err: unknown) => log.warn({ err, tenant: tenantId }, 'runs of a deleted tenant go on to their end'))
        .finally(() => under.delete(work))
      under.add(work)
    },
    async settled(): Promise<void> {
      await Promise.all(under)
    },
  }
}
