import pLimit from 'p-limit'
import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import type { Accounts } from './accounts.ts'

/** Tenants and connections of one look, and connections that are seen to at once, those of one tenant among them. */
const tenantsAtOnce = 100
const ofTenantAtOnce = 50
const abreast = 16
const tenantsAbreast = 4
/** What is being seen to by somebody else is looked at again after this. */
const againSeconds = 30

interface Due {
  readonly id: string
}

/**
 * Does what is due about the connections of all tenants: renews them while they still hold, takes back what was revoked, deletes what has
 * ended. It reads only tenants that have something due, and goes on until there are none.
 */
export async function doRenewals(
  database: Database,
  accounts: Pick<Accounts, 'settle'>,
  log: FastifyBaseLogger,
  signal: AbortSignal,
): Promise<void> {
  const all = pLimit(abreast)
  const renew = async (tenantId: string): Promise<void> => {
    const list = {
      text: 'SELECT id FROM app_connections WHERE tenant_id = $1 AND due_at <= now() ORDER BY due_at LIMIT $2',
      values: [tenantId, ofTenantAtOnce],
    }
    const [due] = await database.batch<[Due[]]>(tenantId, [list])
    const own = pLimit(Math.ceil(abreast / tenantsAbreast))
    await Promise.all(
      due.map(({ id }) =>
        own(() =>
          all(async () => {
            if (signal.aborted) return
            await accounts.settle(tenantId, id).catch((err: unknown) => {
              log.warn({ err, tenantId, connection: id }, 'what is due about a connection could not be done')
            })
          }),
        ),
      ),
    )
    await nextOf(database, tenantId, due.length === ofTenantAtOnce ? 0 : againSeconds)
  }
  const tenants = {
    text: `SELECT d.tenant_id AS id FROM app_due_tenants d JOIN tenants t ON t.id = d.tenant_id AND t.deleted_at IS NULL
           WHERE d.due_at <= now() ORDER BY d.due_at LIMIT $1`,
    values: [tenantsAtOnce],
  }
  while (!signal.aborted) {
    const [due] = await database.systemBatch<[Due[]]>([tenants])
    if (due.length === 0) return
    const some = pLimit(tenantsAbreast)
    await Promise.all(due.map(({ id }) => some(() => renew(id))))
  }
}

/** When the tenant is due again. What another transaction adds meanwhile waits for this row, and is noted behind it. */
async function nextOf(database: Database, tenantId: string, seconds: number): Promise<void> {
  await database.tenant(tenantId, async (tx) => {
    await tx.query({ text: 'SELECT 1 FROM app_due_tenants WHERE tenant_id = $1 FOR UPDATE', values: [tenantId] })
    const [next] = await tx.query<{ at: string | null }>({
      text: `SELECT greatest(min(due_at), now() + make_interval(secs => $2))::text AS at FROM app_connections
             WHERE tenant_id = $1 AND due_at IS NOT NULL HAVING min(due_at) IS NOT NULL`,
      values: [tenantId, seconds],
    })
    const at = next?.at
    await tx.query(
      at
        ? { text: 'UPDATE app_due_tenants SET due_at = $2::timestamptz WHERE tenant_id = $1', values: [tenantId, at] }
        : { text: 'DELETE FROM app_due_tenants WHERE tenant_id = $1', values: [tenantId] },
    )
  })
}
