import type { Database } from '#contracts/database'
import { tenantExists, undeletable, unknownTenant } from './errors.ts'
import { type ChangeTenant, type CreateTenant, isTenantId, type ListQuery, type Tenant } from './schema.ts'
import { deleteTenant, findTenant, insertTenant, listTenants, updateTenant } from './store.ts'

/** The tenant that every installation has, and that the bootstrap key belongs to. Specification 4.2. */
const firstTenant = 'default'

/** `onDeleted` is told of a tenant whose keys no longer work, and whose work should end. */
export function createTenantService(database: Database, onDeleted: (tenantId: string) => void) {
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
    async change(id: string, { name, deleted }: ChangeTenant): Promise<Tenant> {
      const tenant = isTenantId(id) ? await updateTenant(database, id, name, deleted === false) : undefined
      if (!tenant) throw unknownTenant()
      return tenant
    },
    /** Nothing is erased. From here on none of its keys is a key. `own` is the tenant of those who manage tenants. */
    async remove(id: string, own: string): Promise<void> {
      if (id === firstTenant) throw undeletable(id, 'every installation has it')
      if (id === own) throw undeletable(id, 'tenants are managed from it')
      if (!isTenantId(id) || !(await deleteTenant(database, id))) throw unknownTenant()
      onDeleted(id)
    },
  }
}
export type TenantService = ReturnType<typeof createTenantService>
