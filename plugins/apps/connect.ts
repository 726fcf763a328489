import { createHash, randomBytes } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { invalidField, isAppError, notFound } from '#kernel'
import { appErrors, sentenceOf } from '#contracts/apps'
import type { Database, TenantTx } from '#contracts/database'
import { newId } from '#contracts/ids'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import { webhookErrors, type Webhooks } from '#contracts/webhooks'
import type { Accounts } from './connections/accounts.ts'
import { type Connection, connectionById, ensureConnection, lockConnection, markRevoked } from './connections/store.ts'
import type { AppMetrics } from './metrics.ts'
import { type ActiveToolkit, ownerOf, type Toolkits } from './toolkits.ts'

interface ConnectorOptions {
  readonly database: Database
  readonly accounts: Accounts
  readonly toolkits: Toolkits
  readonly limits: Pick<TenantLimits, 'of'> | undefined
  readonly webhooks: Pick<Webhooks, 'check'> | undefined
  /** The origins to which the owner of an account may be redirected at the end. */
  readonly returnOrigins: readonly string[]
  readonly metrics: AppMetrics
  readonly log: FastifyBaseLogger
  readonly stopping: AbortSignal
}

/** The account that is to be connected. */
interface ConnectOrder {
  readonly endUserId?: string | undefined
  readonly returnUrl?: string | undefined
  readonly webhookUrl?: string | undefined
}

interface ConnectLink {
  readonly url: string
  readonly connectionId: string
  /** ISO 8601. */
  readonly expiresAt: string
}

/** The outcome for the owner who has come back. */
export interface Arrival {
  readonly ok: boolean
  /** A sentence for the owner. */
  readonly message: string
  readonly returnUrl?: string
}

/** How long a provider may take for one step, in ms. */
const patienceMs = 15_000

/** Connects accounts: gives links to the owners, handles their return, and revokes connections. */
export class Connector {
  readonly #options: ConnectorOptions

  constructor(options: ConnectorOptions) {
    this.#options = options
  }

  /** Rejects with 400 `connect_refused` for a toolkit without accounts, or when this server has no public callback URL. */
  async begin(tenantId: string, toolkit: ActiveToolkit, order: ConnectOrder): Promise<ConnectLink> {
    const { database, accounts, toolkits, limits, webhooks, metrics } = this.#options
    if (toolkit.connection === 'none') throw appErrors.connectRefused({ message: 'This toolkit needs no account.' })
    const { redirectUrl } = accounts
    if (redirectUrl === undefined) throw appErrors.connectRefused({ message: accounts.missing })
    const endUserId = ownerOf(toolkit, order.endUserId)
    const { returnUrl, webhookUrl } = order
    this.#checkReturn(returnUrl)
    if (webhookUrl !== undefined) {
      if (!webhooks) throw webhookErrors.webhooksUnavailable()
      webhooks.check(tenantId, webhookUrl)
    }
    const { appConnections: most } = limits?.of(tenantId) ?? defaultLimits
    const state = newState(tenantId)
    const { provider, name } = toolkit
    const connecting = { tenantId, toolkit: name, endUserId, redirectUrl, state, signal: this.#patience() }
    // The app is asked before anything is stored, so that a refusal leaves no trace here.
    const { url, keep } = await toolkits.providerOf(toolkit).begin(connecting)
    const { connectionId, former } = await database.tenant(tenantId, async (tx) => {
      const of = { id: newId('conn'), provider, toolkit: name, endUserId, webhookUrl }
      const ensured = await ensureConnection(tx, of, most)
      if (!ensured) throw overLimit('appConnections', most)
      const { connection } = ensured
      const kept = accounts.seal(tenantId, connection.id, keep)
      await storeAuthorization(tx, state, { connectionId: connection.id, kept, returnUrl: returnUrl ?? null })
      return { connectionId: connection.id, former: ensured.former }
    })
    if (former) await accounts.revoke(tenantId, former)
    metrics.links.inc({ outcome: 'given' })
    return { url, connectionId, expiresAt: new Date(Date.now() + authorizationSeconds * 1_000).toISOString() }
  }

  /** Handles the return of the owner, with the parameters of the authorization server's answer. */
  async finish(answer: Readonly<Record<string, string>>): Promise<Arrival> {
    const { metrics } = this.#options
    const { state = '', ...rest } = answer
    const tenantId = tenantOfState(state)
    const taken = tenantId === undefined ? undefined : await takeAuthorization(this.#options.database, tenantId, state)
    if (tenantId === undefined || !taken) {
      metrics.links.inc({ outcome: 'unknown' })
      return { ok: false, message: 'This link was used already, or its time is over. Ask for another one.' }
    }
    const arrival = await this.#exchange(tenantId, taken, rest)
    metrics.links.inc({ outcome: arrival.ok ? 'connected' : 'refused' })
    if (taken.returnUrl === null) return arrival
    const returnUrl = new URL(taken.returnUrl)
    returnUrl.searchParams.set('connection', taken.connectionId)
    returnUrl.searchParams.set('state', arrival.ok ? 'active' : 'failed')
    return { ...arrival, returnUrl: returnUrl.href }
  }

  /** Revokes a connection: here at once, at the app as soon as the app answers. 404 when the toolkit has no such connection. */
  async revoke(tenantId: string, toolkit: string, id: string): Promise<void> {
    const { database, accounts } = this.#options
    const revoked = await database.tenant(tenantId, async (tx): Promise<Connection> => {
      const found = await lockConnection(tx, id)
      if (!found || found.toolkit !== toolkit) throw notFound()
      await markRevoked(tx, id)
      return (await lockConnection(tx, id))!
    })
    await accounts.revoke(tenantId, revoked)
  }

  async #exchange(
    tenantId: string,
    { connectionId, kept: sealed }: { readonly connectionId: string; readonly kept: string },
    answer: Readonly<Record<string, string>>,
  ): Promise<Arrival> {
    const { database, accounts, toolkits, log } = this.#options
    try {
      const connection = await connectionById(database, tenantId, connectionId)
      const keep = accounts.open(tenantId, connectionId, sealed)
      if (!connection || keep === undefined) throw appErrors.connectRefused({ message: gone })
      const { toolkit, endUserId, provider } = connection
      const active = await toolkits.find(tenantId, toolkit)
      if (active.provider !== provider) throw appErrors.toolkitNotActive()
      const redirectUrl = accounts.redirectUrl ?? ''
      const back = { tenantId, toolkit, endUserId, redirectUrl, signal: this.#patience() }
      const app = toolkits.providerOf(active)
      const grant = await app.finish(back, keep, answer)
      const kept = await accounts.connected(tenantId, connectionId, provider, grant)
      if (!kept) {
        // The connection was revoked during the exchange, so the new grant must not stay valid at the app.
        await app.revoke({ ...back, secret: grant.secret })
        throw appErrors.connectRefused({ message: gone })
      }
      if (kept.former !== undefined) {
        await app.replaced?.({ ...back, secret: kept.former }, grant).catch((err: unknown) => {
          log.warn({ err, tenantId, connection: connectionId }, 'the account that was replaced stays at its app')
        })
      }
      return { ok: true, message: `Your account is connected to ${toolkit}. You can close this page.` }
    } catch (error) {
      if (!isAppError(error))
        log.warn({ err: error, tenantId, connection: connectionId }, 'an account was not connected')
      const message = isAppError(error) ? sentenceOf(error) : 'Something went wrong here.'
      await accounts.notConnected(tenantId, connectionId, message)
      return { ok: false, message }
    }
  }
  /** Only the operator decides where owners may be redirected. Otherwise a link of this server could lead to any page. */
  #checkReturn(returnUrl: string | undefined): void {
    if (returnUrl === undefined) return
    const origin = URL.canParse(returnUrl) ? new URL(returnUrl).origin : 'null'
    if (origin === 'null' || !this.#options.returnOrigins.includes(origin)) {
      throw invalidField('body/returnUrl', 'must be a page of an origin that AGENT_ORC_APPS_RETURN_ORIGINS names')
    }
  }
  #patience(): AbortSignal {
    return AbortSignal.any([this.#options.stopping, AbortSignal.timeout(patienceMs)])
  }
}

const gone = 'The connection was revoked meanwhile. Ask for another link.'

/** How long the owner may take to connect the account. */
const authorizationSeconds = 10 * 60
/** The most open links of one account. A further link invalidates the oldest one. */
const mostOpen = 5

/** The `state` of one attempt: the tenant's id and 256 random bits. It works once. */
const newState = (tenantId: string): string =>
  `${Buffer.from(tenantId).toString('base64url')}.${randomBytes(32).toString('base64url')}`

const stateForm = /^([A-Za-z0-9_-]{1,200})\.[A-Za-z0-9_-]{43}$/
/** Undefined for text that `newState` has not made. */
function tenantOfState(state: string): string | undefined {
  const encoded = stateForm.exec(state)?.[1]
  if (encoded === undefined) return undefined
  const tenantId = Buffer.from(encoded, 'base64url').toString()
  return /^[\x21-\x7e]+$/.test(tenantId) ? tenantId : undefined
}

const hashOf = (state: string): string => createHash('sha256').update(state).digest('hex')

/** The stored data of one attempt. */
interface Authorization {
  readonly connectionId: string
  /** Sealed. */
  readonly kept: string
  readonly returnUrl: string | null
}

async function storeAuthorization(tx: TenantTx, state: string, of: Authorization): Promise<void> {
  const { tenantId } = tx
  await tx.query({
    text: `DELETE FROM app_authorizations WHERE tenant_id = $1 AND connection_id = $2 AND (expires_at <= now() OR state_hash IN (
             SELECT state_hash FROM app_authorizations WHERE tenant_id = $1 AND connection_id = $2
             ORDER BY expires_at DESC OFFSET ${mostOpen - 1}))`,
    values: [tenantId, of.connectionId],
  })
  await tx.query({
    text: `INSERT INTO app_authorizations (tenant_id, state_hash, connection_id, kept, return_url, expires_at)
           VALUES ($1, $2, $3, $4, $5, now() + interval '${authorizationSeconds} seconds')`,
    values: [tenantId, hashOf(state), of.connectionId, of.kept, of.returnUrl],
  })
}

/**
 * Uses the attempt up: each state works at most once. Undefined when there is no such attempt, it has expired or it was used. Anybody may ask this in
 * the name of any tenant, so it takes no connection of the tenant's share.
 */
async function takeAuthorization(
  database: Database,
  tenantId: string,
  state: string,
): Promise<Authorization | undefined> {
  const hash = hashOf(state)
  const take = {
    name: 'app-authorization-take',
    text: `DELETE FROM app_authorizations WHERE tenant_id = $1 AND state_hash = $2 AND expires_at > now()
           RETURNING connection_id AS "connectionId", kept, return_url AS "returnUrl"`,
    values: [tenantId, hash],
  }
  const [row] = await database.unit<Authorization>(tenantId, take, { order: `app-authorization ${hash}` })
  return row
}
