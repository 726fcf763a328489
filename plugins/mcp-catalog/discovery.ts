import type { FastifyBaseLogger } from 'fastify'
import type { AuditTrail } from '#contracts/audit'
import type { Database } from '#contracts/database'
import type { TenantLimits } from '#contracts/limits'
import type { McpServer } from '#contracts/mcp-servers'
import type { ModelConnections } from '#kit/models'
import { Shares } from '#kit/turns'
import type { AppError } from '#kernel'
import { isAppError } from '#kernel'
import type { Credentials } from './credentials.ts'
import {
  type Changes,
  type Discovery,
  findDiscovery,
  type Found,
  storeFailure,
  storeFound,
} from './discoveries.store.ts'
import { type Entry, isAllowed, withoutAccount } from './entry.ts'
import { askErrors, catalogErrors } from './errors.ts'
import type { CatalogMetrics } from './metrics.ts'
import type { Failure, ToolState } from './schema.ts'

/** After a failure, requests for the list do not ask the server again for this long. */
const pauseMs = 30_000
/** Discoveries at the same time, those of one tenant, so that its silent servers delay no other tenant, and how many more of a tenant may wait. */
const together = 16
const each = 4
const mostWaiting = 46
/** The largest answer of a server in bytes, and thus the most that is stored of its tools. */
const maxBytes = 2 * 1024 * 1024

export interface DiscoveryOptions {
  readonly database: Database
  readonly credentials: Credentials
  readonly connections: Readonly<Record<NonNullable<McpServer['addresses']>, ModelConnections>>
  addressesOf(tenantId: string, entry: Entry): NonNullable<McpServer['addresses']>
  readonly keepMs: number
  /** Timeout to connect a server and list its tools, in ms. */
  readonly timeoutMs: number
  readonly metrics: CatalogMetrics
  readonly limits: Pick<TenantLimits, 'stored'> | undefined
  /** The audit trail that records changes of tools. */
  readonly trail: AuditTrail | undefined
  readonly log: FastifyBaseLogger
  readonly stopping: AbortSignal
}

/** Lists the tools of MCP servers and stores the result. */
export class Discoveries {
  readonly #options: DiscoveryOptions
  readonly #shares = new Shares({ together, each, mostWaiting, busy: () => catalogErrors.mcpBusy() })
  readonly #underWay = new Map<string, Promise<Found>>()

  constructor(options: DiscoveryOptions) {
    this.#options = options
  }

  /** Asks the server now; with `account` headers it asks as that account. Rejects with an error of `askErrors`, or of secrets. */
  async ask(tenantId: string, entry: Entry, account?: Readonly<Record<string, string>>): Promise<Found> {
    // The account is part of the key, because a server may answer each account differently.
    const key = JSON.stringify([tenantId, entry, account])
    const running = this.#underWay.get(key)
    if (running) return running
    const asked = this.#shares
      .take(tenantId, () => this.#askNow(tenantId, entry, account))
      .finally(() => this.#underWay.delete(key))
    this.#underWay.set(key, asked)
    return asked
  }

  /** The stored tools, listed again when they are too old. When the server cannot be asked, old tools are returned instead of an error. */
  async current(tenantId: string, entry: Entry): Promise<Discovery> {
    const { database, keepMs } = this.#options
    const known = await findDiscovery(database, tenantId, entry)
    if (known?.tools && (known.listedMs! < keepMs || isPaused(known))) return known
    const failed = known?.failure && isPaused(known) ? failureAgain(known.failure) : undefined
    if (failed) throw failed
    try {
      await this.ask(tenantId, entry)
    } catch (error) {
      if (known?.tools) return known
      throw error
    }
    return (await findDiscovery(database, tenantId, entry)) ?? { ...never }
  }

  /** Lists the tools in the background while a run uses the server, so that changes are noticed even if nobody requests the list. */
  refresh(tenantId: string, entry: Entry): void {
    if (this.#options.stopping.aborted) return
    this.ask(tenantId, entry).catch(() => {})
  }

  async #askNow(tenantId: string, entry: Entry, account?: Readonly<Record<string, string>>): Promise<Found> {
    const { database, metrics, limits, log } = this.#options
    try {
      const found = await this.#connect(tenantId, entry, account)
      limits?.stored.admit(tenantId)
      const { changes, grown } = await storeFound(database, tenantId, entry, found)
      if (grown > 0) limits?.stored.add(tenantId, grown)
      metrics.discoveries.inc({ outcome: 'found' })
      await this.#tell(tenantId, entry, changes)
      return found
    } catch (error) {
      metrics.discoveries.inc({ outcome: 'failed' })
      if (!isAppError(error)) throw error
      // The server refused this account only, so the failure is not recorded for the server.
      if (account && error.code === 'mcp_unauthorized') throw error
      const failure = { code: error.code, message: error.sentence ?? error.code }
      await storeFailure(database, tenantId, entry, failure).catch((err: unknown) =>
        log.warn({ err, tenantId, server: entry.name }, 'the failure of an MCP server could not be recorded'),
      )
      throw error
    }
  }

  async #connect(tenantId: string, entry: Entry, account?: Readonly<Record<string, string>>): Promise<Found> {
    const { credentials, stopping } = this.#options
    const signal = AbortSignal.any([stopping, AbortSignal.timeout(this.#options.timeoutMs)])
    const asked = account ? withoutAccount(entry) : entry
    const { headers: own, renew } = await credentials.of(tenantId, asked, signal)
    const headers = { ...own, ...account }
    try {
      return await this.#list(tenantId, entry, headers, signal)
    } catch (error) {
      // The server revoked the token before it expired: retry once with a new token.
      if (!renew || !isAppError(error) || error.code !== 'mcp_unauthorized') throw error
      return this.#list(tenantId, entry, await renew(), signal)
    }
  }

  async #list(
    tenantId: string,
    entry: Entry,
    headers: Readonly<Record<string, string>>,
    signal: AbortSignal,
  ): Promise<Found> {
    const { connections, addressesOf } = this.#options
    const { fetch } = connections[addressesOf(tenantId, entry)]
    const mcp = await import('#kit/mcp')
    const began = performance.now()
    try {
      const transport = entry.transport === 'sse' ? entry.transport : undefined
      const address = { url: entry.url, transport, headers, maxAnswerBytes: maxBytes }
      const session = await mcp.openMcp(fetch, address, signal)
      try {
        const listed = session.client.getServerCapabilities()?.tools ? await mcp.listTools(session, signal) : []
        const latencyMs = Math.round(performance.now() - began)
        const tools = listed.map((tool) => {
          const { name, title, description, inputSchema, outputSchema, annotations } = tool
          return {
            name,
            ...(title === undefined ? {} : { title }),
            ...(description === undefined ? {} : { description }),
            inputSchema,
            ...(outputSchema === undefined ? {} : { outputSchema }),
            ...(annotations === undefined ? {} : { annotations }),
            digest: mcp.digestOf(tool),
          }
        })
        return { server: serverOf(session.client), tools, latencyMs }
      } finally {
        void session.close().catch(() => {})
      }
    } catch (cause) {
      throw isAppError(cause) ? cause : errorOf(mcp.reasonOf(cause), mcp.withoutQuotes(cause))
    }
  }

  async #tell(tenantId: string, entry: Entry, changes: Changes): Promise<void> {
    const { metrics, trail, log } = this.#options
    const kinds = Object.entries(changes) as [keyof Changes, readonly string[]][]
    if (kinds.every(([, names]) => names.length === 0)) return
    for (const [kind, names] of kinds) metrics.changes.inc({ kind, policy: entry.toolPolicy }, names.length)
    const shown = Object.fromEntries(kinds.map(([kind, names]) => [kind, names.slice(0, mostNamed)]))
    const write = { tenantId, actor, action: 'mcp.tools.changed', target: entry.name }
    try {
      const record = await trail?.begin(write)
      if (record) await trail?.end(record, { status: 200, detail: { policy: entry.toolPolicy, ...shown } })
    } catch (err) {
      log.warn({ err, tenantId, server: entry.name }, 'a change of the tools of an MCP server could not be recorded')
    }
  }
}

/** The actor in the audit trail. */
const actor = { keyId: 'mcp-catalog', role: 'service' }
/** The most tool names that one audit record lists for each kind of change. */
const mostNamed = 50
const never: Discovery = { tools: [], listedMs: 0, failedMs: null, failure: null, accepted: {} }

const isPaused = ({ failedMs, listedMs }: Discovery): boolean =>
  failedMs !== null && failedMs < pauseMs && (listedMs === null || failedMs < listedMs)

/** Repeats the failure that a server gave a moment ago. Undefined for other failures, such as a missing secret: these are retried at once. */
function failureAgain({ code, message }: Failure): AppError | undefined {
  return askErrors.find(({ row }) => row.code === code)?.({ message })
}

function serverOf(client: import('#kit/mcp').McpSession['client']): Found['server'] {
  const { name = '', version = '' } = client.getServerVersion() ?? {}
  const protocolVersion = client.getNegotiatedProtocolVersion()
  return {
    name: name.slice(0, 200),
    version: version.slice(0, 200),
    ...(typeof protocolVersion === 'string' ? { protocolVersion } : {}),
  }
}

const byReason = {
  timeout: catalogErrors.mcpTimeout,
  address: catalogErrors.mcpAddressRefused,
  unreached: catalogErrors.mcpUnreachable,
  certificate: catalogErrors.mcpCertificateInvalid,
  too_large: catalogErrors.mcpTooLarge,
  protocol: catalogErrors.mcpProtocol,
} as const

function errorOf(reason: import('#kit/mcp').Reason, cause: unknown): AppError {
  if (reason.kind !== 'status') return byReason[reason.kind]({ cause })
  const { status } = reason
  if (status === 401 || status === 403) return catalogErrors.mcpUnauthorized({ cause, detail: { status } })
  return catalogErrors.mcpRefused({ cause, message: `The server answered ${status}.`, detail: { status } })
}

/** Whether runs may use a tool, and why not. */
export function stateOf(entry: Entry, accepted: Discovery['accepted'], name: string, digest: string): ToolState {
  if (!isAllowed(entry, name)) return 'not_allowed'
  if (entry.toolPolicy === 'trust' || accepted[name] === digest) return 'accepted'
  return Object.hasOwn(accepted, name) ? 'changed' : 'new'
}
