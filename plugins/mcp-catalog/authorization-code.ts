import { appErrors, type Connecting, type Grant, type Lost, sentenceOf } from '#contracts/apps'
import type { AppError } from '#kernel'
import { type Client, clientFor, type ClientsOptions, discover, secretFor } from './authorization-discovery.ts'
import {
  type AuthorizationServerOptions,
  type Fetch,
  fetchFor,
  maxTokenChars,
  refused,
  toldCode,
  whyNot,
} from './authorization-server.ts'
import { dropClient } from './clients.store.ts'
import type { Entry } from './entry.ts'
import { basic } from './oauth.ts'
import type { AuthorizationCode } from './schema.ts'
import { basisOf } from './tokens.ts'

/** The state that is kept while the owner of an account is away at the authorization server. */
interface Kept extends Endpoints {
  readonly basis: string
  readonly verifier: string
  /** The issuer that the answer must come from (RFC 9207), and whether the answer must name it. */
  readonly issuer: string | undefined
  readonly issRequired: boolean
}

interface Endpoints {
  readonly tokenUrl: string
  readonly revocationUrl?: string
  readonly resource: string
  readonly client: Client
}

/** The tokens of a connected account. Their JSON is the secret of its grant. */
interface Tokens extends Endpoints {
  readonly basis: string
  readonly access: string
  readonly refresh?: string
}

/** The access token of an account, and the hash of the entry that the token was issued for. */
export const tokenOf = (secret: string): Pick<Tokens, 'access' | 'basis'> => JSON.parse(secret) as Tokens

export interface CodesOptions extends AuthorizationServerOptions, ClientsOptions {}

const loadAuth = () => import('@modelcontextprotocol/sdk/client/auth.js')

/** Connects accounts by the grant `authorization_code` with PKCE, renews their tokens and takes them back. */
export class AuthorizationCodes {
  readonly #options: CodesOptions

  constructor(options: CodesOptions) {
    this.#options = options
  }

  /** Resolves to the URL to which the owner is sent. `connect_refused` (400) when the authorization server does not allow the connection. */
  async begin(entry: Entry, connecting: Connecting): Promise<{ url: string; keep: string }> {
    const { tenantId, redirectUrl, state, signal } = connecting
    const oauth = entry.oauth as AuthorizationCode
    const fetch = fetchFor(this.#options, tenantId, entry, signal)
    try {
      const found = await discover(fetch, entry, oauth)
      const { metadata, serverUrl, resource, scope } = found
      // The page is checked first, so that no client is registered for a page that is refused.
      this.#checkPage(tenantId, entry, new URL(metadata?.authorization_endpoint ?? '/authorize', serverUrl))
      const client = await clientFor(this.#options, fetch, { tenantId, entry, oauth }, found, redirectUrl)
      const { startAuthorization } = await loadAuth()
      const { authorizationUrl, codeVerifier: verifier } = await startAuthorization(serverUrl, {
        ...(metadata ? { metadata } : {}),
        clientInformation: { client_id: client.id },
        redirectUrl,
        state,
        ...(scope === undefined ? {} : { scope }),
      })
      authorizationUrl.searchParams.set('resource', resource)
      const { authorization_response_iss_parameter_supported: iss } = (metadata ?? {}) as Record<string, unknown>
      const kept: Kept = {
        basis: basisOf(entry),
        verifier,
        issuer: metadata?.issuer,
        issRequired: iss === true,
        tokenUrl: metadata?.token_endpoint ?? new URL('/token', serverUrl).href,
        ...revocationOf(metadata),
        resource,
        client,
      }
      return { url: authorizationUrl.href, keep: toKeep(kept) }
    } catch (cause) {
      throw await notConnected(cause)
    }
  }

  /** The owner has come back: exchanges the code for tokens. `connect_refused` (400) when the answer is not valid. */
  async finish(
    entry: Entry,
    { tenantId, redirectUrl, signal }: Omit<Connecting, 'state'>,
    keep: string,
    answer: Readonly<Record<string, string>>,
  ): Promise<Grant> {
    const kept = JSON.parse(keep) as Kept
    try {
      if (kept.basis !== basisOf(entry)) throw refused('is another one by now: ask for another link')
      checkIssuer(kept, answer)
      if (answer['error'] !== undefined) throw refused(`answered ${toldCode(answer['error']) ?? 'with an error'}`)
      if (!answer['code']) throw refused('sent no code')
      const form = new URLSearchParams({
        grant_type: 'authorization_code',
        code: answer['code'],
        code_verifier: kept.verifier,
        redirect_uri: redirectUrl,
        resource: kept.resource,
      })
      const fetch = fetchFor(this.#options, tenantId, entry, signal)
      return grantOf(kept, await this.#ask(fetch, kept.tokenUrl, form, { tenantId, entry, client: kept.client }))
    } catch (cause) {
      await this.#forgetClient(tenantId, entry, kept.client, cause)
      throw await notConnected(cause)
    }
  }

  /** Resolves to `Lost` when the account must be connected again; rejects with `app_unavailable` (502) when a later retry may succeed. */
  async renew(tenantId: string, entry: Entry, secret: string, signal: AbortSignal): Promise<Grant | Lost> {
    const tokens = JSON.parse(secret) as Tokens
    if (tokens.basis !== basisOf(entry)) return { lost: 'failed', reason: elsewhere }
    if (tokens.refresh === undefined) return { lost: 'expired', reason: 'The access has ended.' }
    const form = new URLSearchParams({
      grant_type: 'refresh_token',
      refresh_token: tokens.refresh,
      resource: tokens.resource,
    })
    try {
      const fetch = fetchFor(this.#options, tenantId, entry, signal)
      const answer = await this.#ask(fetch, tokens.tokenUrl, form, { tenantId, entry, client: tokens.client })
      return grantOf(tokens, { refresh_token: tokens.refresh, ...withoutEmpty(answer) })
    } catch (cause) {
      const code = codeOf(cause)
      const reason = sentenceOf(await whyNot(await told(cause)))
      if (code === 'invalid_grant') return { lost: 'expired', reason }
      if (tokens.client.registered !== undefined && (code === 'invalid_client' || code === 'unauthorized_client')) {
        await this.#forgetClient(tenantId, entry, tokens.client, cause)
        return { lost: 'failed', reason }
      }
      throw appErrors.appUnavailable({ cause, message: reason })
    }
  }

  /** Revokes the tokens (RFC 7009). Resolves at once when the authorization server has no revocation endpoint. */
  async revoke(tenantId: string, entry: Entry, secret: string, signal: AbortSignal): Promise<void> {
    const { revocationUrl, access, refresh, client } = JSON.parse(secret) as Tokens
    if (revocationUrl === undefined) return
    const fetch = fetchFor(this.#options, tenantId, entry, signal)
    // Most servers end the access tokens together with the refresh token. Some do not, so both tokens are revoked.
    for (const [token, hint] of [
      [refresh, 'refresh_token'],
      [access, 'access_token'],
    ] as const) {
      if (token === undefined) continue
      const form = new URLSearchParams({ token, token_type_hint: hint })
      const response = await this.#post(fetch, revocationUrl, form, { tenantId, entry, client })
      await response.body?.cancel()
      if (response.status >= 500)
        throw appErrors.appUnavailable({ message: 'The authorization server does not take it back.' })
    }
  }

  async #ask(fetch: Fetch, url: string, form: URLSearchParams, as: As): Promise<TokenAnswer> {
    const response = await this.#post(fetch, url, form, as)
    const body = (await response.json().catch(() => undefined)) as TokenAnswer | undefined
    if (!response.ok || body?.error !== undefined) throw new OAuthRefusal(response.status, toldCode(body?.error))
    return body ?? {}
  }
  async #post(fetch: Fetch, url: string, form: URLSearchParams, { tenantId, entry, client }: As): Promise<Response> {
    const headers: Record<string, string> = {
      accept: 'application/json',
      'content-type': 'application/x-www-form-urlencoded',
    }
    const secret = await secretFor(this.#options.secrets, tenantId, entry.name, client)
    if (secret !== undefined && client.method === 'client_secret_basic')
      headers['authorization'] = basic(client.id, secret)
    else form.set('client_id', client.id)
    if (secret !== undefined && client.method === 'client_secret_post') form.set('client_secret', secret)
    return fetch(url, { method: 'POST', headers, body: form.toString() })
  }
  /** The owner's browser is sent only to an https page, or over http to a host of the operator's own. */
  #checkPage(tenantId: string, entry: Entry, { protocol, href }: URL): void {
    if (protocol === 'https:') return
    const own = protocol === 'http:' && this.#options.addressesOf(tenantId, entry, href) === 'network'
    if (!own) throw refused('has a page that is not asked without TLS')
  }
  /** The authorization server has dropped our client registration, so the stored one is deleted: the next connection registers again. */
  async #forgetClient(tenantId: string, { name }: Entry, { registered }: Client, cause: unknown): Promise<void> {
    const code = codeOf(cause)
    if (registered === undefined || (code !== 'invalid_client' && code !== 'unauthorized_client')) return
    await dropClient(this.#options.database, tenantId, name, registered)
  }
}

interface As {
  readonly tenantId: string
  readonly entry: Entry
  readonly client: Client
}

interface TokenAnswer {
  readonly access_token?: unknown
  readonly refresh_token?: unknown
  readonly token_type?: unknown
  readonly expires_in?: unknown
  readonly error?: unknown
}

/** An authorization server answered with an error instead of tokens. */
class OAuthRefusal extends Error {
  readonly status: number
  readonly code: string | undefined
  constructor(status: number, code: string | undefined) {
    super(`answered ${status}${code === undefined ? '' : ` and ${code}`}`)
    this.status = status
    this.code = code
  }
}
const codeOf = (error: unknown): string | undefined => (error instanceof OAuthRefusal ? error.code : undefined)

/** Rewords an error in our own sentences. Errors of the library quote the server's text, and only known error codes may be shown. */
async function told(error: unknown): Promise<unknown> {
  if (error instanceof OAuthRefusal) return refused(error.message, error)
  const { OAuthError } = await import('@modelcontextprotocol/sdk/server/auth/errors.js')
  if (!(error instanceof OAuthError)) return error
  const code = toldCode(error.errorCode)
  return refused(code === undefined ? 'refused' : `answered ${code}`, error)
}
/** A server that refuses needs a change of the entry (400); a server that could not be reached may answer later (502). */
async function notConnected(cause: unknown): Promise<AppError> {
  const known = await told(cause)
  const error = await whyNot(known)
  if (error.code !== 'mcp_token_refused') return error
  const make = known === error ? appErrors.connectRefused : appErrors.appUnavailable
  return make({ cause: error, message: sentenceOf(error) })
}

/** RFC 9207: refuses an answer that comes from another authorization server than the requested one. */
function checkIssuer({ issuer, issRequired }: Kept, { iss }: Readonly<Record<string, string>>): void {
  if (iss === undefined ? issRequired : issuer !== undefined && iss !== issuer) {
    throw refused('is not the one that the answer comes from')
  }
}

/** A server that issues no new refresh token leaves the old one valid, so an absent or empty one must not replace it. */
const withoutEmpty = ({ refresh_token: refresh, ...answer }: TokenAnswer): TokenAnswer =>
  typeof refresh === 'string' && refresh !== '' ? { ...answer, refresh_token: refresh } : answer

function grantOf({ basis, tokenUrl, revocationUrl, resource, client }: Tokens | Kept, answer: TokenAnswer): Grant {
  const { access_token: access, refresh_token: refresh, token_type: type, expires_in: expires } = answer
  if (!isToken(access)) throw refused('answered without a token')
  if (typeof type === 'string' && type.toLowerCase() !== 'bearer') throw refused('gave a token that is no bearer token')
  const seconds = Math.floor(Number(expires ?? NaN))
  const tokens: Tokens = {
    basis,
    access,
    ...(isToken(refresh) ? { refresh } : {}),
    tokenUrl,
    ...(revocationUrl === undefined ? {} : { revocationUrl }),
    resource,
    client,
  }
  return {
    secret: toKeep(tokens),
    ...(seconds > 0 ? { seconds } : {}),
    renewable: tokens.refresh !== undefined,
  }
}

/** Servers choose the length of their URLs, client ids and tokens. This limit bounds what one account stores, in characters. */
const mostKept = 64 * 1024
function toKeep(value: Kept | Tokens): string {
  const text = JSON.stringify(value)
  if (text.length > mostKept) throw refused('answers with more than is kept')
  return text
}

const isToken = (text: unknown): text is string =>
  typeof text === 'string' && text.length <= maxTokenChars && /^[\x21-\x7e]+$/.test(text)

const revocationOf = (metadata: object | undefined): { revocationUrl?: string } => {
  const { revocation_endpoint: url } = (metadata ?? {}) as Record<string, unknown>
  return typeof url === 'string' && URL.canParse(url) ? { revocationUrl: url } : {}
}

const elsewhere = 'The entry leads elsewhere by now: the account has to be connected again.'
