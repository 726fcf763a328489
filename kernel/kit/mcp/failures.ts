import {
  ProtocolError,
  ProtocolErrorCode,
  SdkError,
  SdkErrorCode,
  SdkHttpError,
  SseError,
} from '@modelcontextprotocol/client'
import { ForbiddenAddressError } from '../outbound.ts'

/** The earlier library's code for a lost connection. Today's library has its own code for losses that it detects. */
export const connectionClosed = -32_000

/** How a request to an MCP server failed. */
type Failure =
  /** The server has forgotten the MCP session; it did not look at the request. */
  | 'expired'
  /** No connection was made. */
  | 'unreached'
  /** The connection ended after the request, so whether it was carried out is unknown. */
  | 'cut'
  /** The request's arguments do not fit the tool. */
  | 'arguments'
  | 'refused'

/** Socket error codes that mean that no byte was sent. */
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

/** `inSession`: the server had issued a session id. */
export function failureOf(error: unknown, inSession: boolean): Failure {
  if (error instanceof SdkHttpError) {
    // The protocol says 404. Servers that keep sessions in a map answer 400 and mention the session.
    const said = `${error.message} ${String(error.data['text'] ?? '')}`
    const forgotten = error.status === 404 || (error.status === 400 && /session|not initialized/i.test(said))
    return inSession && forgotten ? 'expired' : 'refused'
  }
  if (error instanceof ProtocolError) {
    if (error.code === connectionClosed) return 'cut'
    return error.code === ProtocolErrorCode.InvalidParams ? 'arguments' : 'refused'
  }
  if (error instanceof SdkError && error.code === SdkErrorCode.ConnectionClosed) return 'cut'
  // The library says so, without a code, of a session that has ended already.
  if (error instanceof Error && error.message === 'Not connected') return 'unreached'
  const codes = codesOf(error)
  if (codes.some((code) => beforeConnection.has(code))) return 'unreached'
  return codes.some((code) => behindConnection.has(code)) ? 'cut' : 'refused'
}

/** Why a server cannot be used. */
export type Reason =
  | { readonly kind: 'timeout' | 'address' | 'unreached' | 'certificate' | 'too_large' | 'protocol' }
  | { readonly kind: 'status'; readonly status: number }

export function reasonOf(error: unknown): Reason {
  if (isTimeout(error)) return { kind: 'timeout' }
  const status = error instanceof SdkHttpError ? error.status : error instanceof SseError ? (error.code ?? 0) : 0
  if (status >= 300) return { kind: 'status', status }
  if (causesOf(error).some((one) => one instanceof ForbiddenAddressError)) return { kind: 'address' }
  if (causesOf(error).some(({ code }) => /CERT|SELF_SIGNED|^ERR_TLS|UNABLE_TO_/.test(String(code)))) {
    return { kind: 'certificate' }
  }
  if (failureOf(error, false) === 'unreached') return { kind: 'unreached' }
  return { kind: causesOf(error).some(({ message }) => message.endsWith(tooLarge)) ? 'too_large' : 'protocol' }
}

/** Says why a server's tools are missing. It never quotes the server, which may repeat what it was sent. */
export function whyUnavailable(error: unknown): string {
  const reason = reasonOf(error)
  return reason.kind === 'status' ? `The server answered ${reason.status}.` : sentences[reason.kind]
}

/** The loggable part of such a failure: the library's errors contain the server's answer, which may repeat what it was sent. */
export function withoutQuotes(error: unknown): unknown {
  const quotes = error instanceof SdkError || error instanceof ProtocolError || error instanceof SseError
  if (!quotes) return error
  const { name, code } = error
  return Object.assign(new Error(whyUnavailable(error)), { name, code })
}

const sentences: Readonly<Record<Exclude<Reason['kind'], 'status'>, string>> = {
  timeout: 'The server did not answer in time.',
  address: 'The server has an address that may not be called.',
  unreached: 'The server cannot be reached.',
  certificate: "The server's certificate is not valid.",
  too_large: 'What the server answers is too large.',
  protocol: 'The server does not answer as an MCP server.',
}
/** The ending of the messages about an answer that was too large. */
export const tooLarge = 'the answer is too large'

function causesOf(error: unknown): (Error & { readonly code?: unknown })[] {
  return error instanceof Error ? [error, ...causesOf(error.cause)] : []
}

/** The library passes on the reason of an aborted signal, wrapped in its own error or unchanged. */
export const isTimeout = (error: unknown): boolean =>
  error instanceof Error && (error.name === 'TimeoutError' || /TimeoutError|due to timeout/.test(error.message))

function codesOf(error: unknown): unknown[] {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: { code?: unknown } }
  return [code, cause?.code]
}
