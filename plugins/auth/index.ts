import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { accessErrors } from '#contracts/access-errors'
import { AuditedWrites, type AuditTrail } from '#contracts/audit'
import { ApiGuard, InternalGuard, KeyIssuer, Tokens, VfsGuard } from '#contracts/auth'
import { Database, databaseErrors, needsDatabase, presentDatabase } from '#contracts/database'
import { ReadinessChecks } from '#contracts/health'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { Signers } from '#contracts/signing'
import { acceptLinks, createClientAddress, KeyWatch, trustedProxies, WrongKeys, wrongKeysPerMinute } from '#kit'
import { createApiGuard } from './api-guard.ts'
import { createAuthenticate } from './authenticate.ts'
import { Bootstrap, bootstrapId } from './bootstrap.ts'
import { createInternalGuard, gateways, linkAdmission, vfsServers } from './internal-guard.ts'
import { apiKeyRoutes } from './keys.routes.ts'
import { createApiKeyService } from './keys.service.ts'
import { createKeyLookup } from './keys.store.ts'
import { authErrors } from './errors.ts'

/**
 * Decides who may call a conductor: tenants by API keys, which are issued and revoked here, and gateways by signatures. `tokens` and `signing` are
 * separate plugins of a role file, because a gateway needs them, too. Specification 4.5 and 5.
 */
export default definePlugin({
  name: 'auth',
  config: Settings({
    bootstrapKey: Type.Optional(
      Type.String({
        pattern: '^(?=.{32})[A-Za-z0-9._~+/-]+=*$',
        expects: 'at least 32 characters of a bearer token (openssl rand -hex 24)',
        description:
          'AGENT_ORC_BOOTSTRAP_KEY: a bearer that acts as owner of the bootstrap tenant, before any key exists.',
      }),
    ),
    bootstrap: Type.Union([Type.Literal('until-owner'), Type.Literal('always')], {
      default: 'until-owner',
      description: 'How long the bootstrap key works: until the bootstrap tenant has a live owner key, or always.',
    }),
    bootstrapTenant: Type.String({ default: 'default' }),
    adminTenant: Type.Optional(
      Type.String({
        description:
          'AGENT_ORC_ADMIN_TENANT: the tenant whose admins manage tenants; without it there are no operators.',
      }),
    ),
    maxKeyLifetime: Type.Optional(
      Duration(undefined, 'The longest lifetime of keys that the API issues or rotates from now on. Absent: no limit.'),
    ),
    wrongKeysPerMinute,
    trustedProxies,
  }),
  risks: ({ bootstrapKey, bootstrap }) =>
    bootstrapKey !== undefined && bootstrap === 'always'
      ? ['the bootstrap key acts as owner for as long as it is set; set AGENT_ORC_BOOTSTRAP=until-owner']
      : [],
  errors: [authErrors, accessErrors, limitErrors, databaseErrors],
  requires: {
    tokens: Tokens,
    signers: Signers,
    database: maybe(Database),
    limits: maybe(TenantLimits),
  },
  provides: {
    api: ApiGuard,
    internal: InternalGuard,
    vfs: VfsGuard,
    writes: AuditedWrites,
    readiness: ReadinessChecks,
    issuer: KeyIssuer,
  },
  async setup({ config, deps: { tokens, signers, database, limits }, listeners, log, routes, onStart, onStop }) {
    const { adminTenant, maxKeyLifetime: maxLifetimeMs } = config
    // A role without a database has no stored keys, only the bootstrap key.
    const stored = presentDatabase(database)
    const keys = stored && createKeyLookup(stored, log)
    if (keys) onStop(() => keys.settled())
    const { bootstrapKey: key, bootstrapTenant: tenantId } = config
    const always = config.bootstrap === 'always'
    const bootstrap = key === undefined ? undefined : new Bootstrap({ key, tenantId, always, database: stored, log })
    const { authenticate, tenantLately } = createAuthenticate({
      tokens,
      keys,
      bootstrap,
      clientOf: createClientAddress(config.trustedProxies),
      wrongKeys: new WrongKeys(config.wrongKeysPerMinute),
    })
    let trail: AuditTrail | undefined
    const api = createApiGuard({
      authenticate,
      tenantLately,
      adminTenant,
      trail: () => trail,
      limits,
      keysEnd: keys !== undefined,
    })
    const service = database && createApiKeyService({ database, tokens, limits, maxLifetimeMs })
    if (database && service) {
      routes('conductor', async (app) => {
        api.protect(app)
        needsDatabase(app, database)
        apiKeyRoutes(app, api, service)
      })
    }
    if (keys) {
      const alive = async (tenantId: string, ids: readonly string[]): Promise<string[]> => {
        const stands = ids.includes(bootstrapId) && (await bootstrap?.works())
        return [...(await keys.alive(tenantId, ids)), ...(stands ? [bootstrapId] : [])]
      }
      const watch = new KeyWatch({ held: () => api.held(), alive, log })
      onStart(async () => watch.start())
      onStop(() => watch.stop())
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
      internal: createInternalGuard(signer, gateways),
      vfs: createInternalGuard(signers.get('vfs'), vfsServers),
      writes: { recordOn: (keeper) => void (trail = keeper) },
      readiness: bootstrap ? { 'bootstrap-key': () => bootstrap.check() } : {},
      issuer: {
        async expiryFor(tx, caller, asked) {
          if (!service) throw databaseErrors.databaseRequired()
          return service.expiryFor(tx, caller, asked)
        },
        async issueOwner(tenantId, createdBy) {
          if (!service) throw databaseErrors.databaseRequired()
          return service.issueOwner(tenantId, createdBy)
        },
      },
    }
  },
})
