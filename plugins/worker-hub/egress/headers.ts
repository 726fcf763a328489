import type { IncomingHttpHeaders } from 'node:http'

/** Of a request to a model server. Not those that name an organization or a project: the key's own holds. */
export const modelRequest = [
  'accept',
  'accept-encoding',
  'anthropic-beta',
  'anthropic-version',
  'content-encoding',
  'content-type',
  'idempotency-key',
  'openai-beta',
  'user-agent',
] as const

/** Of a request of the MCP streamable HTTP transport. */
export const mcpRequest = [
  'accept',
  'accept-encoding',
  'content-type',
  'last-event-id',
  'mcp-protocol-version',
  'mcp-session-id',
  'user-agent',
] as const

/** Of an answer. Cookies and whose account it is are not the worker's. */
export const answer = [
  'allow',
  'content-encoding',
  'mcp-session-id',
  'request-id',
  'retry-after',
  'retry-after-ms',
] as const

/** Those of the names that are set, once each. */
export function pick(
  headers: IncomingHttpHeaders | Readonly<Record<string, string | string[] | undefined>>,
  names: readonly string[],
): Record<string, string> {
  const picked: Record<string, string> = {}
  for (const name of names) {
    const value = headers[name]
    if (typeof value === 'string') picked[name] = value
  }
  return picked
}
