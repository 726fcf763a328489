import { StreamableHTTPError } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { ErrorCode, McpError } from '@modelcontextprotocol/sdk/types.js'

/** What became of a request to an MCP server. */
export type Failure =
  /** The server has forgotten the MCP session; it did not look at the request. */
  | 'expired'
  /** No connection was made. */
  | 'unreached'
  /** The connection ended behind the request: whether it was carried out is not known. */
  | 'cut'
  /** The request's arguments are not what the tool takes. */
  | 'arguments'
  | 'refused'

/** Codes of sockets that never carried a byte. */
const beforeConnection: ReadonlySet<unknown> = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
])
const behindConnection: ReadonlySet<unknown> = new Set([
  'ECONNRESET',
  'EPIPE',
  'UND_ERR_SOCKET',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
])

/** `inSession`: the server had given out a session id. */
export function failureOf(error: unknown, inSession: boolean): Failure {
  if (error instanceof StreamableHTTPError) {
    // 404 is what the protocol says; servers that keep sessions in a map answer 400 and speak of the session.
    const forgotten = error.code === 404 || (error.code === 400 && /session|not initialized/i.test(error.message))
    return inSession && forgotten ? 'expired' : 'refused'
  }
  if (error instanceof McpError) {
    if (error.code === ErrorCode.ConnectionClosed) return 'cut'
    return error.code === ErrorCode.InvalidParams ? 'arguments' : 'refused'
  }
  const codes = codesOf(error)
  if (codes.some((code) => beforeConnection.has(code))) return 'unreached'
  return codes.some((code) => behindConnection.has(code)) ? 'cut' : 'refused'
}

/** Why a server's tools are missing, for people; never its own words, which may hold what was sent to it. */
export function whyUnavailable(error: unknown): string {
  if (isTimeout(error)) return 'The server did not answer in time.'
  if (error instanceof StreamableHTTPError && error.code !== undefined && error.code >= 300) {
    return `The server answered ${error.code}.`
  }
  return failureOf(error, false) === 'unreached'
    ? 'The server cannot be reached.'
    : 'The server does not answer as an MCP server.'
}

/** The library passes the reason of an aborted signal on, in its own error or as it is. */
export const isTimeout = (error: unknown): boolean =>
  error instanceof Error && (error.name === 'TimeoutError' || /TimeoutError|due to timeout/.test(error.message))

function codesOf(error: unknown): unknown[] {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: { code?: unknown } }
  return [code, cause?.code]
}
