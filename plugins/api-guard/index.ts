import { Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings } from '#kernel'
import { AuditedWrites, type AuditTrail } from '#contracts/audit'
import { ApiGuard, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { createAuthenticate } from './authenticate.ts'
import { createApiGuard } from './guard.ts'
import { createKeyLookup } from './store.ts'

export default definePlugin({
  name: 'api-guard',
  config: Settings({
    bootstrapKey: Type.Optional(
      Type.String({
        pattern: '^[A-Za-z0-9._~+/-]+=*$',
        description:
          'AGENT_ORC_BOOTSTRAP_KEY: a bearer that acts as owner of the bootstrap tenant, before any key exists.',
      }),
    ),
    bootstrapTenant: Type.String({ default: 'default' }),
    adminTenant: Type.Optional(
      Type.String({
        description: 'AGENT_ORC_ADMIN_TENANT: the tenant whose admins manage tenants; nobody does without it.',
      }),
    ),
  }),
  requires: { tokens: Tokens, database: maybe(Database) },
  provides: { guard: ApiGuard, writes: AuditedWrites },
  async setup({ config, deps, log, onStop }) {
    const { bootstrapKey, bootstrapTenant, adminTenant } = config
    const keys = deps.database && createKeyLookup(deps.database, log)
    if (keys) onStop(() => keys.settled())
    const authenticate = createAuthenticate({
      tokens: deps.tokens,
      keys,
      bootstrap: bootstrapKey === undefined ? undefined : { key: bootstrapKey, tenantId: bootstrapTenant },
    })
    let trail: AuditTrail | undefined
    return {
      guard: createApiGuard({ authenticate, adminTenant, trail: () => trail }),
      writes: { recordOn: (keeper) => void (trail = keeper) },
    }
  },
})
