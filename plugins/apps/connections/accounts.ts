import type { FastifyBaseLogger } from 'fastify'
import {
  type Account,
  type AccountKey,
  type AppAccounts,
  appErrors,
  type ConnectionState,
  type Grant,
  type Lost,
  sentenceOf,
  type ToolkitProvider,
} from '#contracts/apps'
import type { Database, TenantTx } from '#contracts/database'
import type { Sealer } from '#contracts/secrets'
import type { Webhooks } from '#contracts/webhooks'
import { capability, isAppError } from '#kernel'
import { retry, SingleFlight } from '#kit'
import type { ConnectionMetrics } from './metrics.ts'
import {
  type Connection,
  connectionById,
  deleteConnection,
  doubtGrant,
  findConnection,
  isUsable,
  lockConnection,
  storeEnd,
  storeFailure,
  storeGrant,
  takeLease,
} from './store.ts'

export interface AccountsOptions {
  readonly database: Database
  /** Undefined without encryption. Then no account can be connected. */
  readonly sealer: Sealer | undefined
  readonly webhooks: Pick<Webhooks, 'tell'> | undefined
  readonly redirectUrl: string | undefined
  readonly missing: string
  readonly metrics: ConnectionMetrics
  readonly log: FastifyBaseLogger
  readonly stopping: AbortSignal
}

/** How long a provider may take to renew a grant. It must be shorter than the lease. */
const patienceMs = 10_000
/** When a caller checks whether the holder of the lease has stored a new grant: soon, and less and less often while that takes longer. */
const looks = { firstMs: 50, longestMs: 1_000 } as const
/** After this many failures an expired account gets the state `failed`. Retries go on, with growing pauses up to `longestPauseSeconds`. */
const failuresToTell = 3
const longestPauseSeconds = 3_600
/** How often a revocation at the app is tried. */
const mostRevocations = 5

/**
 * The accounts of tenants and end users. Whoever finds a grant due takes a lease and renews it, on any conductor; the others use the old grant while
 * it is valid and wait otherwise. The number `fence` changes with each grant: a slow holder of an expired lease can write neither a success nor a
 * failure over a newer grant.
 */
export class Accounts implements AppAccounts {
  readonly redirectUrl: string | undefined
  readonly missing: string
  readonly #options: AccountsOptions
  readonly #settling = new SingleFlight<void>()
  #providers: ReadonlyMap<string, ToolkitProvider> = new Map()

  constructor(options: AccountsOptions) {
    this.#options = options
    this.redirectUrl = options.redirectUrl
    this.missing = options.missing
  }

  serve(providers: ReadonlyMap<string, ToolkitProvider>): void {
    this.#providers = providers
  }

  async use(tenantId: string, key: AccountKey, signal: AbortSignal): Promise<Account> {
    const found = await this.#find(tenantId, key)
    const held = this.#opened(tenantId, found)
    if (held && !found.due) return held
    const renewed = this.settle(tenantId, found.id)
    if (held) {
      // The present grant is still valid, so the caller does not wait for the new one.
      renewed.catch(() => {})
      return held
    }
    await Promise.race([renewed, aborted(signal)])
    const now = await this.#find(tenantId, key)
    const account = this.#opened(tenantId, now)
    if (account) return account
    throw isUsable(now) ? appErrors.appUnavailable({ message: now.reason ?? notRenewed }) : notConnected(now)
  }
  async refused(tenantId: string, key: AccountKey, account: Account, signal: AbortSignal): Promise<Account> {
    await doubtGrant(this.#options.database, tenantId, account.id, account.fence)
    return this.use(tenantId, key, signal)
  }

  /** Does the due work of a connection. Concurrent callers share one attempt. Rejects when the work could not be tried. */
  settle(tenantId: string, id: string): Promise<void> {
    const key = JSON.stringify([tenantId, id])
    return this.#settling.run(key, () => this.#settle(tenantId, id))
  }

  seal(tenantId: string, id: string, text: string): string {
    if (!this.#options.sealer) throw appErrors.appsUnavailable()
    return this.#options.sealer.seal(tenantId, sealedName(id), text)
  }
  open(tenantId: string, id: string, sealed: string): string | undefined {
    return this.#options.sealer?.open(tenantId, sealedName(id), sealed)
  }
  /** Stores the new grant. Undefined when the connection no longer exists or was revoked in the meantime. `former`: the secret that it replaces. */
  async connected(
    tenantId: string,
    id: string,
    provider: string,
    grant: Grant,
  ): Promise<{ readonly former: string | undefined } | undefined> {
    return this.#options.database.tenant(tenantId, async (tx) => {
      const before = await lockConnection(tx, id)
      if (!before || before.provider !== provider || before.state === 'revoked') return undefined
      await this.#keep(tx, before, grant)
      return { former: before.secret === null ? undefined : this.open(tenantId, id, before.secret) }
    })
  }
  /** The owner did not finish connecting. A connection that worked before keeps its old grant. */
  async notConnected(tenantId: string, id: string, reason: string): Promise<void> {
    await this.#options.database.tenant(tenantId, async (tx) => {
      const before = await lockConnection(tx, id)
      if (before?.state === 'initiated') await this.#end(tx, before, 'failed', reason)
    })
  }
  /**
   * Revokes a connection at its app, which has until `signal` aborts, and ten seconds at most. A failure is retried later, up to `mostRevocations`
   * times, unless the connection has moved on since it was read. Resolves to whether it is over: the app has revoked it, or is not asked again.
   */
  async revoke(tenantId: string, connection: Connection, signal?: AbortSignal): Promise<boolean> {
    const { database, metrics, log } = this.#options
    const secret = connection.secret === null ? undefined : this.open(tenantId, connection.id, connection.secret)
    const provider = this.#providers.get(connection.provider)
    try {
      if (secret !== undefined && provider) await provider.revoke(this.#callerOf(tenantId, connection, secret, signal))
      metrics.revocations.inc({ outcome: 'done' })
    } catch (err) {
      metrics.revocations.inc({ outcome: 'failed' })
      if (connection.failures + 1 < mostRevocations) {
        const failure = { reason: 'It could not be taken back yet.', inSeconds: pauseAfter(connection.failures) }
        if (await this.#under(tenantId, connection, (tx) => storeFailure(tx, connection.id, failure))) return false
      }
      log.warn(
        { err, tenantId, connection: connection.id },
        'an account could not be revoked at its app; it is deleted here',
      )
    }
    await database.tenant(tenantId, async (tx) => {
      if (await lockConnection(tx, connection.id, connection.fence)) await storeEnd(tx, connection.id, 'revoked', null)
    })
    return true
  }

  async #find(tenantId: string, key: AccountKey): Promise<Connection> {
    const { database, sealer } = this.#options
    if (database.absent || !sealer) throw appErrors.appsUnavailable()
    const found = await findConnection(database, tenantId, key)
    if (!found || found.provider !== key.provider || !isUsable(found)) throw notConnected(found)
    return found
  }
  #opened(tenantId: string, { id, secret, fence, valid }: Connection): Account | undefined {
    const opened = valid && secret !== null ? this.open(tenantId, id, secret) : undefined
    return opened === undefined ? undefined : { id, fence, secret: opened }
  }
  #callerOf(tenantId: string, { toolkit }: Connection, secret: string, until = this.#options.stopping) {
    const signal = AbortSignal.any([this.#options.stopping, until, AbortSignal.timeout(patienceMs)])
    return { tenantId, toolkit, secret, signal }
  }

  async #settle(tenantId: string, id: string): Promise<void> {
    const signal = AbortSignal.any([this.#options.stopping, AbortSignal.timeout(2 * patienceMs)])
    const elsewhere = new Error('another process does what is due')
    const look = async (): Promise<void> => {
      if (!(await this.#look(tenantId, id))) throw elsewhere
    }
    await retry(look, { ...looks, stopping: signal, mayPass: (error) => error === elsewhere }).catch(
      (error: unknown) => {
        if (error !== elsewhere) throw error
      },
    )
  }
  /** False while another process does what is due. */
  async #look(tenantId: string, id: string): Promise<boolean> {
    const { database } = this.#options
    const leased = await takeLease(database, tenantId, id)
    if (leased) {
      await this.#doWhatIsDue(tenantId, leased)
      return true
    }
    const now = await connectionById(database, tenantId, id)
    // A secret that this server cannot decrypt is useless, even if the row says that it is valid.
    if (now?.valid && !now.due && this.#opened(tenantId, now) === undefined) await this.#unreadable(tenantId, now)
    return !now?.due
  }
  async #doWhatIsDue(tenantId: string, leased: Connection): Promise<void> {
    const { state, secret } = leased
    if (state === 'revoked' && secret !== null) return void (await this.revoke(tenantId, leased))
    if (!isUsable(leased)) return void (await this.#under(tenantId, leased, (tx) => deleteConnection(tx, leased.id)))
    const opened = this.open(tenantId, leased.id, secret!)
    if (opened === undefined) return this.#unreadable(tenantId, leased)
    return this.#renew(tenantId, leased, opened)
  }
  async #renew(tenantId: string, leased: Connection, secret: string): Promise<void> {
    const { metrics } = this.#options
    try {
      const renewed = await this.#renewed(tenantId, leased, secret)
      const kept = await this.#under(tenantId, leased, (tx, now) =>
        'lost' in renewed ? this.#end(tx, now, renewed.lost, renewed.reason) : this.#keep(tx, now, renewed),
      )
      metrics.renewals.inc({ outcome: !kept ? 'superseded' : 'lost' in renewed ? 'lost' : 'renewed' })
    } catch (error) {
      if (!isAppError(error)) throw error
      metrics.renewals.inc({ outcome: 'failed' })
      await this.#under(tenantId, leased, (tx, now) => this.#failed(tx, now, sentenceOf(error)))
    }
  }
  async #renewed(tenantId: string, leased: Connection, secret: string): Promise<Grant | Lost> {
    if (!leased.renewable) return { lost: 'expired', reason: 'The access has ended, and cannot be renewed by itself.' }
    const provider = this.#providers.get(leased.provider)
    if (!provider) throw appErrors.appUnavailable({ message: 'This server does not lead to the app any more.' })
    return provider.renew(this.#callerOf(tenantId, leased, secret))
  }
  /** Writes only while the leased grant is still the stored one (compare-and-set on `fence`). False when nothing was written. */
  async #under(
    tenantId: string,
    { id, fence }: Connection,
    write: (tx: TenantTx, now: Connection) => Promise<void>,
  ): Promise<boolean> {
    return this.#options.database.tenant(tenantId, async (tx) => {
      const now = await lockConnection(tx, id, fence)
      if (now) await write(tx, now)
      return now !== undefined
    })
  }
  async #keep(tx: TenantTx, before: Connection, { secret, ...grant }: Grant): Promise<void> {
    await storeGrant(tx, before.id, { sealed: this.seal(tx.tenantId, before.id, secret), ...grant })
    await this.#tell(tx, before, 'active', null)
  }
  async #end(tx: TenantTx, before: Connection, state: Lost['lost'], reason: string): Promise<void> {
    await storeEnd(tx, before.id, state, reason)
    await this.#tell(tx, before, state, reason)
  }
  async #failed(tx: TenantTx, before: Connection, reason: string): Promise<void> {
    const over = !before.valid && before.failures + 1 >= failuresToTell
    const inSeconds = pauseAfter(before.failures)
    await storeFailure(tx, before.id, { reason, inSeconds, ...(over ? { state: 'failed' as const } : {}) })
    if (over) await this.#tell(tx, before, 'failed', reason)
  }
  async #unreadable(tenantId: string, found: Connection): Promise<void> {
    const reason = 'It is encrypted with a master key that this server does not have.'
    await this.#under(tenantId, found, (tx, now) => this.#end(tx, now, 'failed', reason))
  }
  /** Tells the webhook once for each change of the connection's state. */
  async #tell(tx: TenantTx, before: Connection, state: ConnectionState, reason: string | null): Promise<void> {
    const { webhooks, metrics } = this.#options
    if (state === before.state) return
    metrics.changes.inc({ provider: before.provider, state })
    if (before.webhookUrl === null) return
    const { id, toolkit, endUserId } = before
    await webhooks?.tell(tx, {
      url: before.webhookUrl,
      type: `app.connection.${state}`,
      data: {
        id,
        toolkit,
        ...(endUserId === '' ? {} : { endUserId }),
        state,
        previousState: before.state,
        ...(reason === null ? {} : { reason }),
      },
    })
  }
}

/** The accounts with the methods to connect and revoke them, for the plugin `apps`. */
export const Connections = capability<Accounts>('conductor.app-connections')

const sealedName = (id: string): string => `app-connections/${id}`
const notRenewed = 'The access to the account could not be renewed in time.'
const pauseAfter = (failures: number): number => Math.min(5 * 2 ** Math.min(failures, 20), longestPauseSeconds)

function notConnected(found: Connection | undefined) {
  const state = found?.state ?? 'none'
  const why: Readonly<Record<string, string>> = {
    none: 'The account has not been connected yet.',
    initiated: 'The owner of the account has not finished connecting it.',
    revoked: 'The connection of the account was revoked.',
  }
  const ended = `The account has to be connected again${found?.reason ? `: ${found.reason}` : '.'}`
  return appErrors.appNotConnected({ message: why[state] ?? ended, detail: { state } })
}

const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    const fail = (): void => reject(appErrors.appUnavailable({ message: notRenewed }))
    if (signal.aborted) fail()
    else signal.addEventListener('abort', fail, { once: true })
  })
