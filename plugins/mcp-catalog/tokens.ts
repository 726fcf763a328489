import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import { type Sealer, secretOf, type Secrets } from '#contracts/secrets'
import { SingleFlight } from '#kit'
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
      // A token that no key can decrypt any more counts as missing, whatever its row says.
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

/** What is stored of the token of an entry, in the form of one read. */
interface StoredToken {
  readonly basis: string
  /** Sealed. */
  readonly token: string | null
  /** It holds for a while yet; it is due to be replaced. */
  readonly valid: boolean
  readonly due: boolean
  /** Why nobody got one a moment ago. */
  readonly failure: string | null
}

/** For so long nobody else asks for a token. Longer than an authorization server may take. */
const leaseFor = `interval '30 seconds'`
/** For so long after a failure nobody asks again. */
const pause = `interval '5 seconds'`

/** A token that expires while it is being sent is useless. Of a short one half of its last part is enough. */
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

/** Takes the right to get a token, where one is due and nobody else is getting it; resolves to its number. */
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
  /** Sealed. */
  readonly token: string
  readonly seconds: number
}

/** False: somebody else has the lease by now, and nothing was stored. */
async function storeToken(
  database: Database,
  tenantId: string,
  name: string,
  lease: string,
  { token, seconds }: NewToken,
): Promise<boolean> {
  const store = {
    // A fifth of its life is left to replace it in.
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

/** The server does not take this token, however long it was to hold. Another one that came meanwhile stays. */
export async function dropToken(database: Database, tenantId: string, name: string, token: string): Promise<void> {
  const drop = {
    text: `UPDATE mcp_tokens SET token = NULL, due_at = NULL WHERE tenant_id = $1 AND name = $2 AND token = $3`,
    values: [tenantId, name, token],
  }
  await database.batch(tenantId, [drop])
}
