import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { AppAccounts, appErrors, ToolkitProviders } from '#contracts/apps'
import { ApiGuard } from '#contracts/auth'
import { AuditLog } from '#contracts/audit'
import { Database, databaseErrors, needsDatabase, presentDatabase } from '#contracts/database'
import { Kv } from '#contracts/kv'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { McpServers } from '#contracts/mcp-servers'
import { Sealer, secretErrors, Secrets } from '#contracts/secrets'
import { createModelConnections } from '#kit/models'
import { permittedAddresses, publicResolve } from '#kit/outbound'
import { OwnHosts } from '#kit/own-hosts'
import { createAddressPolicy } from './address.ts'
import { AuthorizationCodes } from './authorization-code.ts'
import { createConfigEntries, ServerTable } from './config-entries.ts'
import { createCredentials, renewAccount } from './credentials.ts'
import { Discoveries } from './discovery.ts'
import { CatalogEndpoint, endpointRoutes } from './endpoint/routes.ts'
import { type Entry, isNamedBy, mcpProvider } from './entry.ts'
import { catalogErrors } from './errors.ts'
import { createCatalogMetrics } from './metrics.ts'
import { createOAuthClient } from './oauth.ts'
import { createResolver } from './resolver.ts'
import { entryReadRoutes, entryWriteRoutes } from './routes.ts'
import { createCatalogService } from './service.ts'
import { countEntries } from './store.ts'
import { Tokens } from './tokens.ts'
import { createToolkitProvider } from './toolkit.ts'
import { toolRoutes } from './routes.ts'

/** The MCP servers that profiles may name: entries of tenants, and entries of the role file. Specification 2.11 and 4.13. */
export default definePlugin({
  name: 'mcp-catalog',
  config: Settings({
    servers: ServerTable,
    allowHosts: OwnHosts(
      'Hosts of entries of tenants that may be private and may speak plain http, each with its port and its tenants: ' +
        '`tools.internal:8080=acme|globex`. All others must be public and https.',
    ),
    timeout: Type.Optional(Duration('10s', 'Timeout to connect a server and list its tools.')),
    callTimeout: Duration('5m', 'Timeout of a tool call at `POST /mcp/catalog`.'),
    toolsFor: Duration('10m', 'How long the tools of a server are kept before it is asked again.'),
  }),
  errors: [catalogErrors, appErrors, databaseErrors, limitErrors, secretErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    secrets: maybe(Secrets),
    sealer: maybe(Sealer),
    limits: maybe(TenantLimits),
    trail: maybe(AuditLog),
    kv: maybe(Kv),
    accounts: maybe(AppAccounts),
  },
  provides: { servers: McpServers, toolkits: ToolkitProviders },
  async setup({ config: settings, deps, log, metrics, routes, loads, onStop, stopping }) {
    const { servers: listed, allowHosts, toolsFor: keepMs, timeout: timeoutMs = 10_000, callTimeout: callMs } = settings
    const { guard, database, secrets, sealer, limits, trail, kv, accounts } = deps
    const stored = presentDatabase(database)
    const means = { secrets: secrets !== undefined, database: stored !== undefined, accounts }
    const config = createConfigEntries(listed, means)
    const addresses = createAddressPolicy(allowHosts, publicResolve())
    // Only URLs on hosts that the role file names may be private. A URL that such a server points to must be one that tenants may use as well.
    const addressesOf = (tenantId: string, entry: Entry, asked = entry.url) =>
      entry.managedBy === 'config' && isNamedBy(entry, asked) ? 'network' : addresses.addressesOf(tenantId, asked)
    const connections = {
      public: createModelConnections({ permits: permittedAddresses.public }),
      network: createModelConnections({ permits: permittedAddresses.network }),
    }
    onStop(async () => {
      await Promise.all([connections.public.close(), connections.network.close()])
    })
    const counted = createCatalogMetrics(metrics)
    const asking = { connections, addressesOf }
    const oauth = createOAuthClient(asking)
    const tokens =
      stored && secrets && sealer
        ? new Tokens({ database, sealer, secrets, oauth, metrics: counted, stopping })
        : undefined
    const codes = stored && sealer ? new AuthorizationCodes({ ...asking, database, sealer, secrets }) : undefined
    const credentials = createCredentials(secrets, tokens, accounts)
    const discoveries = new Discoveries({
      database,
      credentials,
      connections,
      addressesOf,
      keepMs,
      timeoutMs,
      metrics: counted,
      limits,
      trail,
      log,
      stopping,
    })
    const servers = createResolver({
      database: stored,
      config,
      secrets,
      credentials,
      discoveries,
      addressesOf,
      keepMs,
    })
    const dropToken = async (tenantId: string, name: string): Promise<void> => {
      await Promise.all([tokens?.drop(tenantId, { name }), renewAccount(accounts, tenantId, name, stopping)])
    }
    const shared = { database, config, discoveries, connections, limits, keepMs, stopping, metrics: counted }
    const endpoint = new CatalogEndpoint({ ...shared, servers, kv, callMs, dropToken })
    // Discoveries, apps and workflows use the MCP library as well.
    loads(() => endpoint.prepare())
    onStop(() => endpoint.close())
    if (stored) limits?.uses('mcpEntries', (tenantId) => countEntries(stored, tenantId))
    const service = createCatalogService({ database, config, addresses, secrets, limits, accounts })
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      entryReadRoutes(app, guard, service)
      entryWriteRoutes(app, guard, service)
      toolRoutes(app, guard, { database, service, discoveries })
      endpointRoutes(app, guard, servers, endpoint)
    })
    const toolkit = createToolkitProvider({
      database,
      config,
      credentials,
      discoveries,
      codes,
      endpoint,
      addressesOf,
      keepMs,
    })
    return { servers, toolkits: { [mcpProvider]: toolkit } }
  },
})
