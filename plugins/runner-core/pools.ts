import type { BroadcastPool } from '#contracts/runner'

/** The agent pools that conductors broadcast to this runner, per tenant. They live in memory only: a conductor sends them again. */
export interface PoolBook {
  put(tenantId: string, pool: BroadcastPool): void
  delete(tenantId: string, id: string): void
  list(tenantId: string): BroadcastPool[]
}

export function createPoolBook(): PoolBook {
  const tenants = new Map<string, Map<string, BroadcastPool>>()
  return {
    put(tenantId, pool) {
      const book = tenants.get(tenantId)
      if (book) book.set(pool.id, pool)
      else tenants.set(tenantId, new Map([[pool.id, pool]]))
    },
    delete(tenantId, id) {
      const book = tenants.get(tenantId)
      if (book?.delete(id) && book.size === 0) tenants.delete(tenantId)
    },
    list: (tenantId) => [...(tenants.get(tenantId)?.values() ?? [])],
  }
}
