import type { FastifyBaseLogger } from 'fastify'
import type { Caller } from '#contracts/auth'
import type { Database, Statement } from '#contracts/database'

/** How often its use is logged at most. */
const warnEveryMs = 60_000

interface BootstrapOptions {
  readonly key: string
  readonly tenantId: string
  /** Whether it still works beside an owner key. */
  readonly always: boolean
  /** Undefined in a role without a database: there it is the only key. */
  readonly database: Database | undefined
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/** The key from the environment that acts as owner of one tenant, until that tenant has an owner key. */
export class Bootstrap {
  readonly key: string
  readonly #options: BootstrapOptions
  #warnedAt = -Infinity
  #usedAt: Date | undefined

  constructor(options: BootstrapOptions) {
    this.key = options.key
    this.#options = options
  }

  /** The caller for the bootstrap key; undefined when it is no longer accepted. One round trip, as for any other key. */
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

  /** The sentence of `/readyz` about it. */
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

/** Its id as a caller. */
export const bootstrapId = 'bootstrap'

// A tenant without a row was deleted or never existed.
const ownedTenant: Statement = {
  name: 'api_keys_owned_tenant',
  text: `SELECT EXISTS (
           SELECT FROM tenant_api_keys WHERE tenant_id = $1 AND role = 'owner' AND revoked_at IS NULL
             AND (expires_at IS NULL OR expires_at > now())) AS owned
         FROM tenants WHERE id = $1 AND deleted_at IS NULL`,
}
