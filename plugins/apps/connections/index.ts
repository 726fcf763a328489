import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import pLimit from 'p-limit'
import { definePlugin, maybe, Settings } from '#kernel'
import { AppAccounts, appErrors } from '#contracts/apps'
import { Database, presentDatabase } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { TenantLimits } from '#contracts/limits'
import { Sealer } from '#contracts/secrets'
import { Webhooks } from '#contracts/webhooks'
import { Accounts, Connections } from './accounts.ts'
import { createConnectionMetrics } from './metrics.ts'
import {
  columns,
  type Connection,
  countConnections,
  deleteConnection,
  lockConnection,
  markRevoked,
  viewOf,
} from './store.ts'
import { type EndUserStore, retentionErrors, type TenantDataStore, unlessHeld } from '#contracts/retention'

/** The callback path on the conductor's public listener, to which owners of accounts come back. */
export const callbackPath = '/api/apps/callback'

/**
 * The accounts of tenants and their end users in apps. They are encrypted, renewed once for all conductors, and their changes go to webhooks. It is a
 * plugin of its own, because the toolkits that the plugin `apps` collects use accounts themselves.
 */
export default definePlugin({
  name: 'app-connections',
  config: Settings({
    publicUrl: Type.Optional(
      Type.String({
        pattern: '^(https://[^\\s?#]+|http://(localhost|127\\.0\\.0\\.1|\\[::1\\])(:[0-9]+)?/?)$',
        expects: 'an https URL, or http://localhost with a port for development',
        description:
          "AGENT_ORC_PUBLIC_URL: how browsers reach the conductor. Owners of accounts come back to it; operators register it with '/api/apps/callback' behind it. Without it no account can be connected.",
      }),
    ),
  }),
  errors: appErrors,
  requires: {
    database: Database,
    sealer: maybe(Sealer),
    webhooks: maybe(Webhooks),
    jobs: maybe(Jobs),
    limits: maybe(TenantLimits),
  },
  provides: { accounts: AppAccounts, connections: Connections },
  async setup({ config, deps, log, metrics, stopping }) {
    const { database, sealer, webhooks, jobs, limits } = deps
    const stored = presentDatabase(database)
    const missing = [
      ...(stored ? [] : ['a PostgreSQL database']),
      ...(sealer ? [] : ['AGENT_ORC_MASTER_KEY']),
      ...(config.publicUrl === undefined ? ['AGENT_ORC_PUBLIC_URL'] : []),
    ]
    const accounts = new Accounts({
      database,
      sealer,
      webhooks,
      redirectUrl: missing.length === 0 ? `${config.publicUrl!.replace(/\/+$/, '')}${callbackPath}` : undefined,
      missing: `To connect accounts, this server needs ${missing.join(' and ')}.`,
      metrics: createConnectionMetrics(metrics),
      log,
      stopping,
    })
    if (stored) {
      limits?.uses('appConnections', (tenantId) => countConnections(stored, tenantId))
      jobs?.every('app-connections', '* * * * *', (signal) => doRenewals(stored, accounts, log, signal))
    }
    return { accounts, connections: accounts }
  },
})

/** Tenants of one pass, connections of one tenant in a pass, concurrent connections, and concurrent tenants. */
const tenantsAtOnce = 100
const ofTenantAtOnce = 16
const abreast = 16
const tenantsAbreast = 4
/** When another process is already working on a connection, the tenant is checked again after this time. */
const againSeconds = 30

interface Due {
  readonly id: string
}

/**
 * Does the due work of all connections: renews grants before they expire, retries revocations, deletes ended connections. It reads only tenants with
 * due work, and repeats until there are none.
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
              log.warn({ err, tenantId, connection: id }, 'the due work for a connection failed')
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

/** Stores when the tenant is due next. The lock makes concurrent transactions wait, so their new due dates are not overwritten. */
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

/** The most connections of one page. A person has one for each toolkit. */
const atOnce = 50

/** How often an app is asked to revoke an account that is erased, when it was given less time than usual. */
const mostCut = 3

/**
 * Erases an account, and revokes it at its app before: once, since an app that does not answer must not keep the data here; up to `mostCut` times where
 * the signal cut the call. False when there is no such account any more, or it stays for another call. Rejects with 409 under a legal hold.
 */
async function eraseAccount(
  database: Database,
  accounts: Pick<Accounts, 'revoke'>,
  tenantId: string,
  id: string,
  signal?: AbortSignal,
): Promise<boolean> {
  const revoked = await database.tenant(tenantId, async (tx) => {
    if ((await tx.query(unlessHeld(tenantId))).length === 0) throw retentionErrors.legalHold()
    if (!(await lockConnection(tx, id))) return undefined
    await markRevoked(tx, id)
    return lockConnection(tx, id)
  })
  if (!revoked) return false
  const isOver = await accounts.revoke(tenantId, revoked, signal)
  if (!isOver && signal?.aborted && revoked.failures + 1 < mostCut) return false
  await database.tenant(tenantId, (tx) => deleteConnection(tx, id))
  return true
}

/** The accounts of a tenant and of its end users, for the erasure of the tenant. */
export const createTenantData = (database: Database, accounts: Pick<Accounts, 'revoke'>): TenantDataStore => ({
  async erase(tenantId, signal) {
    const list = {
      text: 'SELECT id, failures FROM app_connections WHERE tenant_id = $1 ORDER BY id LIMIT $2',
      values: [tenantId, abreast],
    }
    const [found] = await database.batch<[Pick<Connection, 'id' | 'failures'>[]]>(tenantId, [list])
    // After a call that was cut fewer of them are asked at once, so that each has more of the time.
    const rows = found.slice(0, Math.max(1, Math.floor(abreast / 2 ** (found[0]?.failures ?? 0))))
    // All are over when this is: one that went on behind a refusal might revoke an account after a legal hold was set.
    const ends = await Promise.allSettled(rows.map(({ id }) => eraseAccount(database, accounts, tenantId, id, signal)))
    const failed = ends.find((end) => end.status === 'rejected')
    if (failed) throw failed.reason
    const deleted = ends.filter((end) => end.status === 'fulfilled' && end.value).length
    return { deleted, more: found.length === abreast || deleted < found.length }
  },
})

/** The data of end users in this plugin: their connected accounts. */
export function createEndUserData(database: Database, accounts: Pick<Accounts, 'revoke'>): EndUserStore {
  const list = async (tenantId: string, endUserId: string, after: string): Promise<Connection[]> => {
    const page = {
      text: `SELECT ${columns} FROM app_connections WHERE tenant_id = $1 AND end_user_id = $2 AND id > $3 ORDER BY id LIMIT ${atOnce}`,
      values: [tenantId, endUserId, after],
    }
    const [rows] = await database.as('reads').batch<[Connection[]]>(tenantId, [page])
    return rows
  }
  return {
    async *items(tenantId, endUserId) {
      for (let rows = await list(tenantId, endUserId, ''); rows.length > 0;) {
        yield rows.map(viewOf)
        rows = await list(tenantId, endUserId, rows.at(-1)!.id)
      }
    },
    async erase(tenantId, endUserId, signal) {
      let erased = 0
      for (let rows = await list(tenantId, endUserId, ''); rows.length > 0 && !signal.aborted;) {
        for (const { id } of rows) {
          if (await eraseAccount(database, accounts, tenantId, id)) erased++
        }
        rows = await list(tenantId, endUserId, rows.at(-1)!.id)
      }
      return erased
    },
  }
}
