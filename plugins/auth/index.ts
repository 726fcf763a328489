import { Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings } from '#kernel'
import { AuditedWrites, type AuditTrail } from '#contracts/audit'
import { ApiGuard, InternalGuard, Tokens } from '#contracts/auth'
import { Database, needsDatabase, presentDatabase } from '#contracts/database'
import { TenantLimits } from '#contracts/limits'
import { Signers } from '#contracts/signing'
import { acceptLinks } from '#kit'
import { createApiGuard, createAuthenticate } from './api-guard.ts'
import { createInternalGuard, linkAdmission } from './internal-guard.ts'
import { apiKeyRoutes } from './keys.routes.ts'
import { createApiKeyService } from './keys.service.ts'
import { createKeyLookup } from './keys.store.ts'
import { authErrors } from './errors.ts'

/**
 * Who may call a conductor: tenants by their API keys, which are issued and revoked here, and gateways by their signatures.
 * `tokens` and `signing` are plugins of their own in a role file, because a gateway needs them, too. Specification 4.5 and 5.
 */
export default definePlugin({
  name: 'auth',
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
  errors: authErrors,
  requires: {
    tokens: Tokens,
    signers: Signers,
    database: maybe(Database),
    limits: maybe(TenantLimits),
  },
  provides: { api: ApiGuard, internal: InternalGuard, writes: AuditedWrites },
  async setup({ config, deps: { tokens, signers, database, limits }, listeners, log, routes, onStop }) {
    const { bootstrapKey, bootstrapTenant, adminTenant } = config
    // Without a database there are no keys but the bootstrap one.
    const stored = presentDatabase(database)
    const keys = stored && createKeyLookup(stored, log)
    if (keys) onStop(() => keys.settled())
    const authenticate = createAuthenticate({
      tokens,
      keys,
      bootstrap: bootstrapKey === undefined ? undefined : { key: bootstrapKey, tenantId: bootstrapTenant },
    })
    let trail: AuditTrail | undefined
    const api = createApiGuard({
      authenticate,
      adminTenant,
      trail: () => trail,
      limits,
    })
    if (database) {
      const service = createApiKeyService(database, tokens)
      routes('conductor', async (app) => {
        api.protect(app)
        needsDatabase(app, database)
        apiKeyRoutes(app, api, service)
      })
    }

    const signer = signers.get('chat-gateway')
    if (listeners.includes('internal')) {
      if (!signer) {
        throw new Error(
          'the internal listener is on (INTERNAL_PORT) but nothing can verify its requests; set CHAT_GATEWAY_SIGNING_KEY_CURRENT',
        )
      }
      routes('internal', async (app) => acceptLinks(app, linkAdmission(signer)))
    }
    return {
      api,
      internal: createInternalGuard(signer),
      writes: { recordOn: (keeper) => void (trail = keeper) },
    }
  },
})
