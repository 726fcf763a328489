import type { FastifyBaseLogger } from 'fastify'
import type { Caller } from '#contracts/auth'
import type { Database, Statement } from '#contracts/database'

/** Milliseconds. The use of the bootstrap key is logged at most this often. */
const warnEveryMs = 60_000

interface BootstrapOptions {
  readonly key: string
  readonly tenantId: string
  /** True if the bootstrap key still works after the tenant has an owner key. */
  readonly always: boolean
  /** Undefined in a role without a database, where the bootstrap key is the only key. */
  readonly database: Database | undefined
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/** The bootstrap key from the environment. It acts as an owner of one tenant, until that tenant has an owner key. */
export class Bootstrap {
  readonly key: string
  readonly #options: BootstrapOptions
  #warnedAt = -Infinity
  #usedAt: Date | undefined

  constructor(options: BootstrapOptions) {
    this.key = options.key
    this.#options = options
  }

  /** The caller for the bootstrap key; undefined if the key is no longer accepted. Takes one round trip, as for any other key. */
  async caller(): Promise<Caller | undefined> {
    if (!(await this.works())) return undefined
    this.#used()
    return { tenantId: this.#options.tenantId, role: 'owner', keyId: bootstrapId }
  }

  async works(): Promise<boolean> {
    const { database, tenantId, always } = this.#options
    if (!database) return true
    const [tenant] = await database.unit<{ owned: boolean }>(tenantId, { ...ownedTenant, values: [tenantId] })
    return tenant !== undefined && (always || !tenant.owned)
  }

  /** The warning of `/readyz` if the bootstrap key was used. */
  async check(): Promise<string | void> {
    if (this.#usedAt === undefined || !this.#options.database) return
    const at = this.#usedAt.toISOString().slice(0, 16)
    return `AGENT_ORC_BOOTSTRAP_KEY was last used at ${at}Z; issue a key for an owner and unset it`
  }

  #used(): void {
    const { log, database } = this.#options
    this.#usedAt = new Date()
    const now = performance.now()
    if (!database || now - this.#warnedAt < warnEveryMs) return
    this.#warnedAt = now
    log.warn('the key of AGENT_ORC_BOOTSTRAP_KEY is in use; issue a key for an owner and unset it')
  }
}

/** The key id of a caller with the bootstrap key. */
export const bootstrapId = 'bootstrap'

// A tenant without a row was deleted or never existed.
const ownedTenant: Statement = {
  name: 'api_keys_owned_tenant',
  text: `SELECT EXISTS (
           SELECT FROM tenant_api_keys WHERE tenant_id = $1 AND role = 'owner' AND revoked_at IS NULL
             AND (expires_at IS NULL OR expires_at > now())) AS owned
         FROM tenants WHERE id = $1 AND deleted_at IS NULL`,
}
