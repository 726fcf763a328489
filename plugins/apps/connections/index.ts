import { Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings } from '#kernel'
import { AppAccounts, appErrors } from '#contracts/apps'
import { Database, presentDatabase } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { TenantLimits } from '#contracts/limits'
import { Sealer } from '#contracts/secrets'
import { Webhooks } from '#contracts/webhooks'
import { Accounts, Connections } from './accounts.ts'
import { createConnectionMetrics } from './metrics.ts'
import { doRenewals } from './renewals.ts'
import { countConnections } from './store.ts'

/** Where owners of accounts come back to, on the public listener of the conductor. */
export const callbackPath = '/api/apps/callback'

/**
 * The accounts of tenants and their end users in apps: kept encrypted, renewed once for all conductors, and told of when they change. It is a
 * plugin of its own, because the toolkits that use accounts are what the plugin `apps` is made of.
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
