import type { AppError } from '#kernel'
import { isAppError } from '#kernel'
import type { McpServer } from '#contracts/mcp-servers'
import { readBody } from '#kit'
import type { ModelConnections } from '#kit/models'
import type { Entry } from './entry.ts'
import { catalogErrors } from './errors.ts'

/** A longer answer of an authorization server is refused. */
const maxAnswerBytes = 256 * 1024
export const maxTokenChars = 16_000

export type Fetch = (url: string | URL, init?: RequestInit) => Promise<Response>

export interface AuthorizationServerOptions {
  readonly connections: Readonly<Record<NonNullable<McpServer['addresses']>, ModelConnections>>
  /** Which addresses a URL may have that is asked for an entry of a tenant. */
  addressesOf(tenantId: string, entry: Entry, url: string): NonNullable<McpServer['addresses']>
}

/**
 * Requests to authorization servers on behalf of an entry. Servers name further URLs, so each URL is checked again: secrets leave only over TLS, or
 * to the operator's own hosts. An answer is read up to a fixed size.
 */
export const fetchFor =
  (
    { connections, addressesOf }: AuthorizationServerOptions,
    tenantId: string,
    entry: Entry,
    signal: AbortSignal,
  ): Fetch =>
  async (url, init) => {
    const addresses = addressesOf(tenantId, entry, String(url))
    if (addresses === 'public' && new URL(url).protocol !== 'https:') throw refused('is not asked without TLS')
    const { body, headers, ...rest } = init ?? {}
    const sent = {
      ...rest,
      // `ModelConnections` takes headers only as a plain record and a body only as text.
      headers: Object.fromEntries(new Headers(headers)),
      ...(body === undefined || body === null ? {} : { body: String(body) }),
    }
    return bounded(await connections[addresses].fetch(String(url), { ...sent, signal }))
  }

async function bounded(response: Response): Promise<Response> {
  const { status, headers } = response
  if (!response.body) return response
  // An event stream never ends, and none of these requests expects one.
  if (headers.get('content-type')?.startsWith('text/event-stream')) {
    await response.body.cancel()
    return new Response(null, { status, headers })
  }
  const bytes = await readBody(response.body, maxAnswerBytes)
  if (!bytes) throw refused('answers with more than is read')
  return new Response(bytes as Uint8Array<ArrayBuffer>, { status, headers })
}

/** The error codes of RFC 6749 5.2, RFC 7591 3.2.2 and RFC 8707. Nothing else of a server's error text is shown. */
const told = new Set([
  'invalid_request',
  'invalid_client',
  'invalid_grant',
  'unauthorized_client',
  'unsupported_grant_type',
  'invalid_scope',
  'invalid_target',
  'invalid_redirect_uri',
  'invalid_client_metadata',
  'access_denied',
  'server_error',
  'temporarily_unavailable',
  'unsupported_response_type',
])
export const toldCode = (code: unknown): string | undefined =>
  typeof code === 'string' && told.has(code) ? code : undefined

/** `mcp_token_refused` (502). The sentence must quote neither the server nor our request, because both may hold secrets. */
export const refused = (why: string, cause?: unknown): AppError =>
  catalogErrors.mcpTokenRefused({ cause, message: `The authorization server of the entry ${why}.` })

/** The error for a request to an authorization server that failed. */
export async function whyNot(cause: unknown): Promise<AppError> {
  if (isAppError(cause)) return cause
  const { reasonOf, whyUnavailable } = await import('#kit/mcp')
  return reasonOf(cause).kind === 'protocol'
    ? refused('does not answer as one', cause)
    : refused(`cannot be asked: ${whyUnavailable(cause)}`, cause)
}
