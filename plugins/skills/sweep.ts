import type { Database } from '#contracts/database'
import type { SkillStore } from './store.ts'

const everyTenant = { name: 'skills-tenants', text: 'SELECT id FROM tenants WHERE erased_at IS NULL ORDER BY id' }

/** Deletes imports that nobody committed and versions that nobody needs, tenant by tenant: row security hides them from a statement without one. */
export async function sweepTenants(database: Database, store: SkillStore, signal: AbortSignal): Promise<void> {
  const [tenants] = await database.as('reads').systemBatch<[{ id: string }[]]>([everyTenant])
  for (const { id } of tenants) {
    // A backlog goes in small transactions.
    while (!signal.aborted && (await store.sweep(id)) >= 100);
    if (signal.aborted) return
  }
}
