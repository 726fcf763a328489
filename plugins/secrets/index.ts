import { definePlugin, maybe } from '#kernel'
import { ApiGuard, VfsGuard } from '#contracts/auth'
import { Database, databaseErrors, needsDatabase, presentDatabase } from '#contracts/database'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { Sealer, secretErrors, Secrets } from '#contracts/secrets'
import { createNoSecrets, createResolver, PlainCache } from './resolver.ts'
import { createSecretMetrics, startCensus } from './census.ts'
import { createSealer, noKeyring } from './envelope.ts'
import { Reads } from './reads.ts'
import { resolveRoute, secretReadRoutes, secretWriteRoutes } from './routes.ts'
import { createSecretService } from './service.ts'
import { keyringOf, SecretSettings } from './settings.ts'
import { channel, countSecrets } from './store.ts'

/**
 * Secrets of tenants. They are stored encrypted and never returned by the public API. Plugins of the conductor get plain text directly, and signed
 * callers get it over the internal listener. Specification 2.11 and 4.17.
 */
export default definePlugin({
  name: 'secrets',
  config: SecretSettings,
  errors: [secretErrors, databaseErrors, limitErrors],
  requires: { guard: ApiGuard, vfs: VfsGuard, database: Database, limits: maybe(TenantLimits) },
  provides: { secrets: Secrets, sealer: Sealer },
  async setup({ config, deps, log, metrics, routes, onStart, onStop }) {
    const { guard, vfs, database, limits } = deps
    const { keepVersions, cacheFor: keepMs, cacheBytes: maxBytes } = config
    const keyring = keyringOf(config)
    const cache = new PlainCache({ keepMs, maxBytes })
    const service = createSecretService({ database, keyring: keyring ?? noKeyring, limits, keepVersions, cache })
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      if (!keyring) {
        app.addHook('onRequest', async () => {
          throw secretErrors.secretsUnavailable()
        })
      }
      secretReadRoutes(app, guard, database)
      secretWriteRoutes(app, guard, service)
    })

    const stored = presentDatabase(database)
    const open = (): Secrets => {
      if (!keyring || !stored) return createNoSecrets()
      const reads = new Reads(stored, log)
      const counted = createSecretMetrics(metrics)
      const onOutcome = (outcome: 'resolved' | 'refused'): void => counted.resolved.inc({ outcome })
      const begun: (() => void | Promise<void>)[] = []
      limits?.uses('secrets', (tenantId) => countSecrets(stored, tenantId))
      onStop(async () => {
        for (const stop of begun) await stop()
        cache.clear()
        await reads.flush()
      })
      onStart(async () => {
        begun.push(await stored.listen(channel, (changed) => cache.forget(changed)))
        begun.push(startCensus(stored, keyring, counted, log))
      })
      return createResolver({ database: stored, keyring, cache, reads, onOutcome })
    }
    const secrets = open()
    routes('internal', async (app) => {
      vfs.protect(app)
      resolveRoute(app, vfs, secrets)
    })
    return { secrets, sealer: createSealer(keyring ?? noKeyring) }
  },
})
