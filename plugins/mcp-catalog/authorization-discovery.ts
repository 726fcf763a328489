import { createHash } from 'node:crypto'
import type { AuthorizationServerMetadata, OAuthClientInformationFull } from '@modelcontextprotocol/sdk/shared/auth.js'
import type { Database } from '#contracts/database'
import { type Sealer, secretOf, type Secrets } from '#contracts/secrets'
import { type Fetch, refused } from './authorization-server.ts'
import { findClient, storeClient } from './clients.store.ts'
import type { Entry } from './entry.ts'
import type { AuthorizationCode } from './schema.ts'

/** Whom the owner of an account is sent to, and for what. */
export interface Discovered {
  /** As the server names it, or where it should be. */
  readonly serverUrl: string
  /** Undefined: it publishes none, and is where servers were before they did. */
  readonly metadata: AuthorizationServerMetadata | undefined
  /** What tokens are for (RFC 8707). */
  readonly resource: string
  readonly scope: string | undefined
}

/** What the authorization server knows us as. */
export interface Client {
  readonly id: string
  readonly secret?: string
  /** The reference of a secret that the tenant has written; it is looked up each time. */
  readonly secretRef?: string
  readonly method: 'client_secret_basic' | 'client_secret_post' | 'none'
  /** As it is stored when we have registered it ourselves. */
  readonly registered?: string
}

const loadAuth = () => import('@modelcontextprotocol/sdk/client/auth.js')

/** For the owner of an account. */
export async function discover(fetch: Fetch, entry: Entry, oauth: AuthorizationCode): Promise<Discovered> {
  const { asked, scopes, ...found } = await findServer(fetch, entry, oauth.issuer)
  const { metadata } = found
  if (metadata && !metadata.code_challenge_methods_supported?.includes('S256')) {
    throw refused('does not support PKCE with S256')
  }
  const wanted = oauth.scopes ?? asked?.split(' ') ?? scopes ?? []
  // Without it some servers give no refresh token, and the account would end by itself.
  const offline = metadata?.scopes_supported?.includes('offline_access') && !oauth.scopes ? ['offline_access'] : []
  const scope = [...new Set([...wanted, ...offline])].join(' ')
  return { ...found, scope: scope === '' ? undefined : scope }
}

interface FoundServer extends Omit<Discovered, 'scope'> {
  /** The scopes that the server asks for, and those that it knows. */
  readonly asked: string | undefined
  readonly scopes: readonly string[] | undefined
}

/**
 * Finds the authorization server of an entry: by what the server says (RFC 9728), else at its own origin; and that one's metadata (RFC 8414).
 * What a server says is believed of itself alone: a token for another one must not be sent to it.
 */
export async function findServer(fetch: Fetch, { url }: Pick<Entry, 'url'>, issuer?: string): Promise<FoundServer> {
  const auth = await loadAuth()
  const { checkResourceAllowed, resourceUrlFromServerUrl } =
    await import('@modelcontextprotocol/sdk/shared/auth-utils.js')
  const own = resourceUrlFromServerUrl(url)
  // As clients do: of who asks otherwise some servers want no proof, and then do not say what they want.
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
  // As it is published, letter by letter: a URL that is parsed and written again may be another text.
  const resource = resourceMetadata?.resource ?? own.href
  if (!checkResourceAllowed({ requestedResource: own, configuredResource: resource })) {
    throw refused('is named by a server that speaks for another one')
  }
  // RFC 8414 3.3.
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

/** What we are known as: as the entry says, or as we were registered, which is done once for all who connect. */
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
      // What comes back to this machine alone comes back to no page of the web, as servers understand it.
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

/** The secret of a client, as it is now. */
export async function secretFor(
  secrets: Secrets | undefined,
  tenantId: string,
  name: string,
  { secret, secretRef }: Client,
): Promise<string | undefined> {
  if (secretRef === undefined) return secret
  return (await secrets?.resolve(tenantId, secretOf(secretRef)!, `mcp-servers/${name}`))?.value
}

/** Characters of what we are known as. */
const mostOfClient = 8_000
const sealedName = ({ name }: Entry): string => `mcp-oauth-clients/${name}`
const noRegistration = 'registers no clients by itself; write `clientId` into the entry'
