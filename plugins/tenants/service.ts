import type { FastifyBaseLogger } from 'fastify'
import { conflict, notFound, unavailable } from '#kernel'
import type { KeyIssuer } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { limitKinds, limitNames, type TenantLimits } from '#contracts/limits'
import { type Retention, retentionErrors } from '#contracts/retention'
import type { RunStore } from '#contracts/run-store'
import { isTerminal, type RunDispatch, runStatuses } from '#contracts/runs'
import {
  type ChangeTenant,
  type CreatedTenant,
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

/** Every installation has this tenant, and the bootstrap key belongs to it. Specification 4.2. */
const firstTenant = 'default'

interface TenantServiceParts {
  readonly database: Database
  readonly limits: TenantLimits | undefined
  readonly retention: Retention | undefined
  readonly issuer: KeyIssuer | undefined
  /** Called after a tenant was deleted. Its keys no longer work, and its runs should end. */
  onDeleted(tenantId: string): void
}

export function createTenantService({ database, limits, retention, issuer, onDeleted }: TenantServiceParts) {
  return {
    list: (query: ListQuery) => listTenants(database, query),
    /** Creates a tenant. `createdBy` is the id of the calling key. */
    async create({ id, name = id, ownerKey = false }: CreateTenant, createdBy: string): Promise<CreatedTenant> {
      if (ownerKey && !issuer)
        throw unavailable({ message: 'This server issues no keys: its role file has no plugin `auth`.' })
      const tenant = await insertTenant(database, id, name)
      if (tenant && ownerKey) {
        const { id: keyId, token, expiresAt } = await issuer!.issueOwner(id, createdBy)
        return { ...tenant, ownerKey: { id: keyId, token, expiresAt } }
      }
      if (tenant) return tenant
      const taken = await findTenant(database, id)
      throw tenantExists(id, typeof taken?.deletedAt === 'string')
    },
    async find(id: string, includeDeleted: boolean): Promise<Tenant> {
      const tenant = isTenantId(id) ? await findTenant(database, id) : undefined
      if (!tenant || (tenant.deletedAt !== null && !includeDeleted)) throw unknownTenant()
      return tenant
    },
    async change(id: string, { deleted, limits: wanted, ...change }: ChangeTenant): Promise<Tenant> {
      if ((change.retention || change.legalHold !== undefined) && !retention) throw retentionErrors.noRetention()
      const restore = deleted === false
      const tenant = isTenantId(id) ? await updateTenant(database, id, { ...change, restore }) : undefined
      if (!tenant) {
        const found = restore && isTenantId(id) ? await findTenant(database, id) : undefined
        throw found ? retentionErrors.tenantErased() : unknownTenant()
      }
      if (change.legalHold !== undefined) await retention!.tellHold(id)
      if (!wanted) return tenant
      if (!limits) throw unavailable({ message: 'This server keeps no limits: its role file has no plugin `limits`.' })
      if (!(await limits.change(id, wanted))) throw unknownTenant()
      return { ...tenant, limits: { ...limits.ownOf(id) } as Tenant['limits'] }
    },
    /** Every limit of the caller's own tenant, with the tenant's current usage. */
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
    /**
     * Marks the tenant as deleted, so that its keys stop working. Data is erased only if `erase` is true, or after the number of days in the role
     * file. `own` is the caller's tenant, which cannot be deleted.
     */
    async remove(id: string, own: string, erase: boolean): Promise<void> {
      if (id === firstTenant) throw undeletable(id, 'every installation has it')
      if (id === own) throw undeletable(id, 'tenants are managed from it')
      if (erase && !retention) throw retentionErrors.noRetention()
      if (!isTenantId(id)) throw unknownTenant()
      if (await deleteTenant(database, id, erase, retention?.eraseAfter)) {
        onDeleted(id)
        if (erase) await retention!.wake()
        return
      }
      const found = erase ? await findTenant(database, id) : undefined
      throw found?.legalHold ? retentionErrors.legalHold() : unknownTenant()
    },
  }
}
export type TenantService = ReturnType<typeof createTenantService>

/** How many runs are cancelled at once, so that a large tenant does not flood the conductor. */
const together = 50

/**
 * Cancels the unfinished runs of a deleted tenant in the background, after the request was answered. If cancelling fails, these runs end by
 * themselves. No new run can start, because no key of the tenant works.
 */
export function createRunCanceller(
  store: Pick<RunStore, 'listRuns'>,
  runs: Pick<RunDispatch, 'cancel'>,
  log: Pick<FastifyBaseLogger, 'warn'>,
  stopping: AbortSignal,
) {
  const under = new Set<Promise<void>>()
  const cancel = async (tenantId: string): Promise<void> => {
    // Waiting runs are cancelled before running ones, because the end of a running run would start the next waiting run.
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
        .catch((err: unknown) => log.warn({ err, tenant: tenantId }, 'runs of a deleted tenant continue to their end'))
        .finally(() => under.delete(work))
      under.add(work)
    },
    async settled(): Promise<void> {
      await Promise.all(under)
    },
  }
}
