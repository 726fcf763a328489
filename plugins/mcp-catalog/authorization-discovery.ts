import { createHash } from 'node:crypto'
import type { AuthorizationServerMetadata, OAuthClientInformationFull } from '@modelcontextprotocol/sdk/shared/auth.js'
import type { Database } from '#contracts/database'
import { type Sealer, secretOf, type Secrets } from '#contracts/secrets'
import { type Fetch, refused } from './authorization-server.ts'
import { findClient, storeClient } from './clients.store.ts'
import type { Entry } from './entry.ts'
import type { AuthorizationCode } from './schema.ts'

/** The authorization server to which the owner of an account is sent, and what is requested there. */
export interface Discovered {
  /** The URL that the MCP server names, or the MCP server's own origin. */
  readonly serverUrl: string
  /** Undefined: the server publishes no metadata, so its endpoints are at the default paths of older servers. */
  readonly metadata: AuthorizationServerMetadata | undefined
  /** The resource that the tokens are for (RFC 8707). */
  readonly resource: string
  readonly scope: string | undefined
}

/** Our registration as a client of an authorization server. */
export interface Client {
  readonly id: string
  readonly secret?: string
  /** The reference to a secret that the tenant has written. The secret is resolved for each request. */
  readonly secretRef?: string
  readonly method: 'client_secret_basic' | 'client_secret_post' | 'none'
  /** The sealed text of a stored registration. Present only when we registered the client ourselves. */
  readonly registered?: string
}

const loadAuth = () => import('@modelcontextprotocol/sdk/client/auth.js')

/** Finds the authorization server of an entry and the scopes to request. Refuses a server without PKCE S256. */
export async function discover(fetch: Fetch, entry: Entry, oauth: AuthorizationCode): Promise<Discovered> {
  const { asked, scopes, ...found } = await findServer(fetch, entry, oauth.issuer)
  const { metadata } = found
  if (metadata && !metadata.code_challenge_methods_supported?.includes('S256')) {
    throw refused('does not support PKCE with S256')
  }
  const wanted = oauth.scopes ?? asked?.split(' ') ?? scopes ?? []
  // Without this scope some servers issue no refresh token, and the account would end when its access token expires.
  const offline = metadata?.scopes_supported?.includes('offline_access') && !oauth.scopes ? ['offline_access'] : []
  const scope = [...new Set([...wanted, ...offline])].join(' ')
  return { ...found, scope: scope === '' ? undefined : scope }
}

interface FoundServer extends Omit<Discovered, 'scope'> {
  /** The scopes that the MCP server requests, and the scopes that it supports. */
  readonly asked: string | undefined
  readonly scopes: readonly string[] | undefined
}

/**
 * Finds the authorization server of an entry, from the MCP server's metadata (RFC 9728) or else at the MCP server's own origin, and the authorization
 * server's metadata (RFC 8414). A server may speak only for itself, because a token for another server must never be sent to it.
 */
export async function findServer(fetch: Fetch, { url }: Pick<Entry, 'url'>, issuer?: string): Promise<FoundServer> {
  const auth = await loadAuth()
  const { checkResourceAllowed, resourceUrlFromServerUrl } =
    await import('@modelcontextprotocol/sdk/shared/auth-utils.js')
  const own = resourceUrlFromServerUrl(url)
  // The probe must look like a real client request. Some servers answer other requests without a challenge, which names the metadata and scopes.
  const headers = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' }
  const probe = await fetch(url, {
    method: 'POST',
    headers,
    body: JSON.stringify({ jsonrpc: '2.0', id: 0, method: 'ping' }),
  })
  await probe.body?.cancel()
  const { resourceMetadataUrl, scope: asked } = auth.extractWWWAuthenticateParams(probe)
  const found = issuer
    ? {
        authorizationServerUrl: issuer,
        authorizationServerMetadata: await auth.discoverAuthorizationServerMetadata(issuer, { fetchFn: fetch }),
        resourceMetadata: undefined,
      }
    : await auth.discoverOAuthServerInfo(url, {
        fetchFn: fetch,
        ...(resourceMetadataUrl ? { resourceMetadataUrl } : {}),
      })
  const { authorizationServerUrl: serverUrl, authorizationServerMetadata: metadata, resourceMetadata } = found
  // The resource is sent exactly as published: parsing and serializing a URL can change its text.
  const resource = resourceMetadata?.resource ?? own.href
  if (!checkResourceAllowed({ requestedResource: own, configuredResource: resource })) {
    throw refused('is named by a server that speaks for another one')
  }
  // RFC 8414 3.3 requires that the metadata names the issuer at whose URL it was found.
  if (metadata && withoutSlash(metadata.issuer) !== withoutSlash(serverUrl))
    throw refused('says that it is another one')
  return { serverUrl, metadata, resource, asked, scopes: resourceMetadata?.scopes_supported }
}
const withoutSlash = (url: string): string => (URL.canParse(url) ? new URL(url).href : url).replace(/\/$/, '')

export interface ClientsOptions {
  readonly database: Database
  readonly sealer: Sealer
  readonly secrets: Secrets | undefined
}

/** The client of an entry: the one that the entry names, or else one that is registered once and shared by all accounts of the entry. */
export async function clientFor(
  { database, sealer }: ClientsOptions,
  fetch: Fetch,
  of: { readonly tenantId: string; readonly entry: Entry; readonly oauth: AuthorizationCode },
  { serverUrl, metadata, scope }: Discovered,
  redirectUrl: string,
): Promise<Client> {
  const { tenantId, entry, oauth } = of
  const methods = metadata?.token_endpoint_auth_methods_supported
  if (oauth.clientId !== undefined) {
    if (oauth.clientSecret === undefined) return { id: oauth.clientId, method: 'none' }
    return { id: oauth.clientId, secretRef: oauth.clientSecret, method: methodOf(methods) }
  }
  const basis = createHash('sha256')
    .update(JSON.stringify([serverUrl, redirectUrl, entry.url]))
    .digest('hex')
  const known = await findClient(database, tenantId, entry.name, basis)
  const opened = known === undefined ? undefined : sealer.open(tenantId, sealedName(entry), known)
  if (known !== undefined && opened !== undefined) return { ...(JSON.parse(opened) as Client), registered: known }
  const { registerClient } = await loadAuth()
  const client = await registerClient(serverUrl, {
    ...(metadata ? { metadata } : {}),
    fetchFn: fetch,
    clientMetadata: {
      client_name: 'Agent Orc',
      // Servers treat a redirect to this machine over http as a native application, not as a web page.
      ...({ application_type: redirectUrl.startsWith('https:') ? 'web' : 'native' } as object),
      redirect_uris: [redirectUrl],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: methods?.includes('none') ? 'none' : methodOf(methods),
    },
    ...(scope === undefined ? {} : { scope }),
  }).catch((cause: unknown) => {
    throw !metadata || metadata.registration_endpoint ? cause : refused(noRegistration, cause)
  })
  const made = clientOf(client, methods)
  if (JSON.stringify(made).length > mostOfClient) throw refused('answers with more than is kept')
  const sealed = sealer.seal(tenantId, sealedName(entry), JSON.stringify(made))
  const expiresAt = client.client_secret_expires_at || undefined
  await storeClient(database, tenantId, entry.name, { basis, client: sealed, expiresAt })
  return { ...made, registered: sealed }
}

function clientOf(client: OAuthClientInformationFull, methods: readonly string[] | undefined): Client {
  const { client_id: id, client_secret: secret, token_endpoint_auth_method: given } = client
  if (secret === undefined) return { id, method: 'none' }
  return { id, secret, method: given === 'client_secret_post' ? given : methodOf(methods) }
}

const methodOf = (methods: readonly string[] | undefined): 'client_secret_basic' | 'client_secret_post' =>
  methods && !methods.includes('client_secret_basic') && methods.includes('client_secret_post')
    ? 'client_secret_post'
    : 'client_secret_basic'

/** The present secret of a client. Undefined for a public client. */
export async function secretFor(
  secrets: Secrets | undefined,
  tenantId: string,
  name: string,
  { secret, secretRef }: Client,
): Promise<string | undefined> {
  if (secretRef === undefined) return secret
  return (await secrets?.resolve(tenantId, secretOf(secretRef)!, `mcp-servers/${name}`))?.value
}

/** The largest client registration that is stored, in characters. */
const mostOfClient = 8_000
const sealedName = ({ name }: Entry): string => `mcp-oauth-clients/${name}`
const noRegistration = 'registers no clients by itself; write `clientId` into the entry'
