import { createHash } from 'node:crypto'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import { type Sealer, secretOf, type Secrets } from '#contracts/secrets'
import { retry, SingleFlight } from '#kit'
import { addressOf, type Entry } from './entry.ts'
import { catalogErrors } from './errors.ts'
import type { CatalogMetrics } from './metrics.ts'
import type { OAuthClient } from './oauth.ts'
import type { ClientCredentials } from './schema.ts'

interface TokensOptions {
  readonly database: Database
  readonly sealer: Sealer
  readonly secrets: Secrets
  readonly oauth: OAuthClient
  readonly metrics: CatalogMetrics
  readonly stopping: AbortSignal
}

/** How long an authorization server may take. It must be shorter than the lease. */
const patienceMs = 10_000
/** When a caller checks whether the holder of the lease has stored a new token: soon, and less and less often while that takes longer. */
const looks = { firstMs: 50, longestMs: 1_000 } as const

/**
 * Access tokens of entries, encrypted in the database so that all conductors share them. Whoever finds a token due takes a lease and replaces it; the
 * others use the old token while it is valid and wait otherwise. The lease number is a fence: a token from an expired lease is not stored.
 */
export class Tokens {
  readonly #options: TokensOptions
  readonly #replacing = new SingleFlight<string>()

  constructor(options: TokensOptions) {
    this.#options = options
  }

  /** Rejects as `OAuthClient.grant` does, and with the errors of secrets. */
  async of(tenantId: string, entry: Entry, signal: AbortSignal): Promise<string> {
    const found = await findToken(this.#options.database, tenantId, entry.name)
    const held = this.#opened(tenantId, entry, found)
    if (held !== undefined && !found?.due) return held
    const replaced = this.#replaced(tenantId, entry)
    if (held === undefined) return Promise.race([replaced, aborted(signal)])
    // The present token is still valid, so the caller does not wait for the new one.
    replaced.catch(() => {})
    return held
  }

  /** Called when the server has refused the stored token. */
  async drop(tenantId: string, { name }: Pick<Entry, 'name'>): Promise<void> {
    const { database } = this.#options
    const found = await findToken(database, tenantId, name)
    if (found?.token) await dropToken(database, tenantId, name, found.token)
  }

  #opened(tenantId: string, entry: Entry, found: StoredToken | undefined): string | undefined {
    if (!found?.valid || found.token === null || found.basis !== basisOf(entry)) return undefined
    return this.#options.sealer.open(tenantId, sealedName(entry), found.token)
  }

  /** Concurrent callers in this process share one replacement. */
  #replaced(tenantId: string, entry: Entry): Promise<string> {
    const key = JSON.stringify([tenantId, entry.name, basisOf(entry)])
    return this.#replacing.run(key, () => this.#replace(tenantId, entry))
  }

  async #replace(tenantId: string, entry: Entry): Promise<string> {
    const signal = AbortSignal.any([this.#options.stopping, AbortSignal.timeout(2 * patienceMs)])
    const inVain = catalogErrors.mcpTokenRefused({ message: waitedInVain })
    const look = async (): Promise<string> => (await this.#look(tenantId, entry)) ?? Promise.reject(inVain)
    return retry(look, { ...looks, stopping: signal, mayPass: (error) => error === inVain })
  }
  /** Undefined while another process replaces the token. */
  async #look(tenantId: string, entry: Entry): Promise<string | undefined> {
    const { database } = this.#options
    const basis = basisOf(entry)
    const lease = await takeLease(database, tenantId, entry.name, basis)
    const got = lease === undefined ? undefined : await this.#get(tenantId, entry, lease)
    if (got !== undefined) return got
    const found = await findToken(database, tenantId, entry.name)
    const held = found?.due ? undefined : this.#opened(tenantId, entry, found)
    if (held !== undefined) return held
    if (found?.failure && found.basis === basis) throw catalogErrors.mcpTokenRefused({ message: found.failure })
    // A token that no present key can decrypt counts as missing, even if its row says that it is valid.
    if (found?.valid && found.token !== null && this.#opened(tenantId, entry, found) === undefined)
      await dropToken(database, tenantId, entry.name, found.token)
    return undefined
  }

  /** Undefined when another process has taken over the lease in the meantime. */
  async #get(tenantId: string, entry: Entry, lease: string): Promise<string | undefined> {
    const { database, sealer, secrets, oauth, metrics, stopping } = this.#options
    try {
      const signal = AbortSignal.any([stopping, AbortSignal.timeout(patienceMs)])
      const client = entry.oauth as ClientCredentials
      const secret = await secrets.resolve(tenantId, secretOf(client.clientSecret)!, `mcp-servers/${entry.name}`)
      const { token, seconds } = await oauth.grant(tenantId, entry, client, secret.value, signal)
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

/** A hash of the entry's address and OAuth settings: a token is valid only for the settings that it was requested with. */
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

/** The stored token of an entry, as one query reads it. */
interface StoredToken {
  readonly basis: string
  /** The sealed token. */
  readonly token: string | null
  /** `valid`: the token can still be used. `due`: the token should be replaced now. */
  readonly valid: boolean
  readonly due: boolean
  /** Why a recent attempt to get a token failed. */
  readonly failure: string | null
}

/** How long the lease keeps other processes from requesting a token. It must be longer than an authorization server may take. */
const leaseFor = `interval '30 seconds'`
/** How long after a failure no process tries again. */
const pause = `interval '5 seconds'`

/** A token must not expire on its way to the server. For a short-lived token the margin is half of the time after it becomes due. */
const margin = `least(interval '30 seconds', (expires_at - due_at) / 2)`

const columns = `basis, token, token IS NOT NULL AND expires_at - ${margin} > now() AS valid, coalesce(due_at <= now(), true) AS due,
  CASE WHEN failed_at > now() - ${pause} THEN failure END AS failure`

async function findToken(database: Database, tenantId: string, name: string): Promise<StoredToken | undefined> {
  const find = {
    text: `SELECT ${columns} FROM mcp_tokens WHERE tenant_id = $1 AND name = $2`,
    values: [tenantId, name],
  }
  const [[row]] = await database.batch<[StoredToken[]]>(tenantId, [find])
  return row
}

/** Takes the lease on a token that is due, unless another process holds it. Resolves to the number of the lease. */
async function takeLease(
  database: Database,
  tenantId: string,
  name: string,
  basis: string,
): Promise<string | undefined> {
  const take = {
    text: `INSERT INTO mcp_tokens AS t (tenant_id, name, basis, lease, leased_until)
           VALUES ($1, $2, $3, 1, now() + ${leaseFor})
           ON CONFLICT (tenant_id, name) DO UPDATE SET lease = t.lease + 1, leased_until = now() + ${leaseFor},
             basis = excluded.basis,
             token = CASE WHEN t.basis = excluded.basis THEN t.token END,
             failed_at = CASE WHEN t.basis = excluded.basis THEN t.failed_at END
           WHERE coalesce(t.leased_until <= now(), true) AND (
             t.basis <> excluded.basis OR (coalesce(t.due_at <= now(), true) AND coalesce(t.failed_at <= now() - ${pause}, true)))
           RETURNING lease::text AS lease`,
    values: [tenantId, name, basis],
  }
  const [[row]] = await database.batch<[{ lease: string }[]]>(tenantId, [take])
  return row?.lease
}

interface NewToken {
  /** The sealed token. */
  readonly token: string
  readonly seconds: number
}

/** Compare-and-set on the lease. False when another process has the lease by now; nothing was stored then. */
async function storeToken(
  database: Database,
  tenantId: string,
  name: string,
  lease: string,
  { token, seconds }: NewToken,
): Promise<boolean> {
  const store = {
    // The token becomes due after 80 % of its life, so a fifth is left to replace it.
    text: `UPDATE mcp_tokens SET token = $4, expires_at = now() + make_interval(secs => $5),
             due_at = now() + make_interval(secs => $5 * 0.8), leased_until = NULL, failed_at = NULL, failure = NULL
           WHERE tenant_id = $1 AND name = $2 AND lease = $3::bigint RETURNING 1`,
    values: [tenantId, name, lease, token, seconds],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [store])
  return rows.length > 0
}

async function storeTokenFailure(
  database: Database,
  tenantId: string,
  name: string,
  lease: string,
  failure: string,
): Promise<void> {
  const store = {
    text: `UPDATE mcp_tokens SET leased_until = NULL, failed_at = now(), failure = $4
           WHERE tenant_id = $1 AND name = $2 AND lease = $3::bigint`,
    values: [tenantId, name, lease, failure],
  }
  await database.batch(tenantId, [store])
}

/** Deletes a token that the server has refused before its expiry. A newer token that was stored in the meantime stays. */
export async function dropToken(database: Database, tenantId: string, name: string, token: string): Promise<void> {
  const drop = {
    text: `UPDATE mcp_tokens SET token = NULL, due_at = NULL WHERE tenant_id = $1 AND name = $2 AND token = $3`,
    values: [tenantId, name, token],
  }
  await database.batch(tenantId, [drop])
}
