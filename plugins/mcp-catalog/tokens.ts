import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Database } from '#contracts/database'
import { type Sealer, secretOf, type Secrets } from '#contracts/secrets'
import { isAppError } from '#kernel'
import { SingleFlight } from '#kit'
import { addressOf, type Entry } from './entry.ts'
import { catalogErrors } from './errors.ts'
import type { CatalogMetrics } from './metrics.ts'
import type { OAuthClient } from './oauth.ts'
import type { ClientCredentials } from './schema.ts'
import { dropToken, findToken, type StoredToken, storeToken, storeTokenFailure, takeLease } from './tokens.store.ts'

export interface TokensOptions {
  readonly database: Database
  readonly sealer: Sealer
  readonly secrets: Secrets
  readonly oauth: OAuthClient
  readonly metrics: CatalogMetrics
  readonly stopping: AbortSignal
}

/** How long an authorization server may take. Shorter than a lease. */
const patienceMs = 10_000
/** How often somebody looks who waits for the token that another one gets. */
const lookMs = 50

/**
 * Access tokens of entries, encrypted in the database, so that all conductors use one. Whoever finds it due takes a lease and
 * replaces it; the others go on with the old one while it holds, and wait for the new one otherwise. A holder that was only slow
 * brings its token in vain: the number of the lease refuses it.
 */
export class Tokens {
  readonly #options: TokensOptions
  readonly #replacing = new SingleFlight<string>()

  constructor(options: TokensOptions) {
    this.#options = options
  }

  /** Errors as `OAuthClient.grant`, and those of secrets. */
  async of(tenantId: string, entry: Entry, signal: AbortSignal): Promise<string> {
    const found = await findToken(this.#options.database, tenantId, entry.name)
    const held = this.#opened(tenantId, entry, found)
    if (held !== undefined && !found?.due) return held
    const replaced = this.#replaced(tenantId, entry)
    if (held === undefined) return Promise.race([replaced, aborted(signal)])
    // It holds for a while yet.
    replaced.catch(() => {})
    return held
  }

  /** The server does not take the token that is stored. */
  async drop(tenantId: string, { name }: Pick<Entry, 'name'>): Promise<void> {
    const { database } = this.#options
    const found = await findToken(database, tenantId, name)
    if (found?.token) await dropToken(database, tenantId, name, found.token)
  }

  #opened(tenantId: string, entry: Entry, found: StoredToken | undefined): string | undefined {
    if (!found?.valid || found.token === null || found.basis !== basisOf(entry)) return undefined
    return this.#options.sealer.open(tenantId, sealedName(entry), found.token)
  }

  /** Once for all that want it in this process. */
  #replaced(tenantId: string, entry: Entry): Promise<string> {
    const key = JSON.stringify([tenantId, entry.name, basisOf(entry)])
    return this.#replacing.run(key, () => this.#replace(tenantId, entry))
  }

  async #replace(tenantId: string, entry: Entry): Promise<string> {
    const { database, stopping } = this.#options
    const signal = AbortSignal.any([stopping, AbortSignal.timeout(2 * patienceMs)])
    const basis = basisOf(entry)
    for (;;) {
      const lease = await takeLease(database, tenantId, entry.name, basis)
      const got = lease === undefined ? undefined : await this.#get(tenantId, entry, lease)
      if (got !== undefined) return got
      const found = await findToken(database, tenantId, entry.name)
      const held = found?.due ? undefined : this.#opened(tenantId, entry, found)
      if (held !== undefined) return held
      if (found?.failure && found.basis === basis) throw catalogErrors.mcpTokenRefused({ message: found.failure })
      // A token that nobody can open any more is none, whatever its row says.
      if (found?.valid && found.token !== null && this.#opened(tenantId, entry, found) === undefined) {
        await dropToken(database, tenantId, entry.name, found.token)
      }
      if (signal.aborted) throw catalogErrors.mcpTokenRefused({ message: waitedInVain })
      await sleep(lookMs, undefined, { signal }).catch(() => {})
    }
  }

  /** Undefined: somebody else has taken over meanwhile. */
  async #get(tenantId: string, entry: Entry, lease: string): Promise<string | undefined> {
    const { database, sealer, secrets, oauth, metrics, stopping } = this.#options
    try {
      const signal = AbortSignal.any([stopping, AbortSignal.timeout(patienceMs)])
      const client = entry.oauth as ClientCredentials
      const secret = await secrets.resolve(tenantId, secretOf(client.clientSecret)!, `mcp-servers/${entry.name}`)
      const { token, seconds } = await oauth.grant(entry, client, secret.value, signal)
      metrics.tokens.inc({ outcome: 'granted' })
      const sealed = sealer.seal(tenantId, sealedName(entry), token)
      const kept = await storeToken(database, tenantId, entry.name, lease, { token: sealed, seconds })
      return kept ? token : undefined
    } catch (error) {
      metrics.tokens.inc({ outcome: 'refused' })
      const message = isAppError(error) ? (error.sentence ?? error.code) : 'The token could not be got.'
      await storeTokenFailure(database, tenantId, entry.name, lease, message)
      throw error
    }
  }
}

const waitedInVain = 'The authorization server of the entry gave no token in time.'
const sealedName = ({ name }: Entry): string => `mcp-tokens/${name}`

/** What a token was got with and for. */
export const basisOf = (entry: Entry): string =>
  createHash('sha256')
    .update(JSON.stringify([addressOf(entry), entry.oauth]))
    .digest('hex')

const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    const fail = (): void => reject(catalogErrors.mcpTokenRefused({ message: waitedInVain }))
    if (signal.aborted) fail()
    else signal.addEventListener('abort', fail, { once: true })
  })
