import { findServer } from './authorization-discovery.ts'
import type { Entry } from './entry.ts'
import {
  type AuthorizationServerOptions,
  type Fetch,
  fetchFor,
  maxTokenChars,
  refused,
  toldCode,
  whyNot,
} from './authorization-server.ts'
import type { ClientCredentials } from './schema.ts'

/** An access token from an authorization server. */
export interface Granted {
  readonly token: string
  readonly seconds: number
}

/** The lifetime that is assumed for a token without `expires_in`, and the longest lifetime that is believed. */
const unknownSeconds = 300
const mostSeconds = 30 * 24 * 60 * 60

/** Requests tokens with the grant `client_credentials` (RFC 6749 4.4), naming the resource that they are for (RFC 8707). */
export function createOAuthClient(options: AuthorizationServerOptions) {
  return {
    /** Rejects with `mcp_token_refused` (502). The sentence quotes neither the server nor our request. */
    async grant(
      tenantId: string,
      entry: Entry,
      oauth: ClientCredentials,
      clientSecret: string,
      signal: AbortSignal,
    ): Promise<Granted> {
      const fetch = fetchFor(options, tenantId, entry, signal)
      try {
        const { tokenUrl, methods, resource } = await endpointOf(fetch, entry, oauth)
        const form = new URLSearchParams({ grant_type: 'client_credentials', resource })
        if (oauth.scopes?.length) form.set('scope', oauth.scopes.join(' '))
        const headers: Record<string, string> = {
          accept: 'application/json',
          'content-type': 'application/x-www-form-urlencoded',
        }
        if (methods && !methods.includes('client_secret_basic') && methods.includes('client_secret_post')) {
          form.set('client_id', oauth.clientId)
          form.set('client_secret', clientSecret)
        } else headers['authorization'] = basic(oauth.clientId, clientSecret)
        const response = await fetch(tokenUrl, { method: 'POST', headers, body: form.toString() })
        return await grantedBy(response)
      } catch (cause) {
        throw await whyNot(cause)
      }
    },
  }
}
export type OAuthClient = ReturnType<typeof createOAuthClient>

interface Endpoint {
  readonly tokenUrl: string
  /** The client authentication methods that the server supports. HTTP Basic is used when they are unknown. */
  readonly methods?: readonly string[]
  readonly resource: string
}

async function endpointOf(fetch: Fetch, entry: Entry, { tokenUrl }: ClientCredentials): Promise<Endpoint> {
  if (tokenUrl !== undefined) {
    const resource = new URL(entry.url)
    resource.hash = ''
    return { tokenUrl, resource: resource.href }
  }
  const { metadata, resource } = await findServer(fetch, entry)
  if (!metadata) throw refused('publishes no metadata; write `tokenUrl` into the entry')
  const methods = metadata.token_endpoint_auth_methods_supported
  return { tokenUrl: metadata.token_endpoint, ...(methods ? { methods } : {}), resource }
}

/** RFC 6749 2.3.1: the id and the secret are form-encoded before they are joined. */
export const basic = (id: string, secret: string): string => {
  const encoded = [id, secret].map((part) => new URLSearchParams({ '': part }).toString().slice(1))
  return `Basic ${Buffer.from(encoded.join(':')).toString('base64')}`
}

async function grantedBy(response: Response): Promise<Granted> {
  const body = (await response.json().catch(() => undefined)) as Readonly<Record<string, unknown>> | undefined
  const { access_token: token, token_type: type, expires_in: expires, error } = body ?? {}
  if (!response.ok) {
    const code = toldCode(error)
    throw refused(`answered ${response.status}${code === undefined ? '' : ` and ${code}`}`)
  }
  if (typeof token !== 'string' || token.length > maxTokenChars || !/^[\x21-\x7e]+$/.test(token)) {
    throw refused('answered without a token')
  }
  if (typeof type === 'string' && type.toLowerCase() !== 'bearer') throw refused('gave a token that is no bearer token')
  const seconds = Number(expires)
  const holds = expires !== undefined && expires !== null && seconds > 0
  return { token, seconds: holds ? Math.min(Math.floor(seconds) || 1, mostSeconds) : unknownSeconds }
}
