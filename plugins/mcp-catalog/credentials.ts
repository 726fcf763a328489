import type { Secrets } from '#contracts/secrets'
import { type Entry, secretsOf } from './entry.ts'
import type { Tokens } from './tokens.ts'

/** What is sent to a server to prove who asks. */
export interface Sent {
  readonly headers: Readonly<Record<string, string>>
  /** Headers with another token, for when the server does not take this one; absent where there is none. */
  readonly renew?: () => Promise<Readonly<Record<string, string>>>
}

/** Makes headers in plain text of what entries say. */
export interface Credentials {
  /** Errors as `Secrets.headers`, and `mcp_token_refused` (502). */
  of(tenantId: string, entry: Entry, signal: AbortSignal): Promise<Sent>
}

export function createCredentials(secrets: Secrets | undefined, tokens: Tokens | undefined): Credentials {
  return {
    async of(tenantId, entry, signal) {
      const { name, headers = {}, oauth } = entry
      const plain =
        secrets && secretsOf({ headers }).length > 0
          ? await secrets.headers(tenantId, headers, `mcp-servers/${name}`)
          : headers
      if (!oauth || !tokens) return { headers: plain }
      const withToken = (token: string) => ({ ...plain, authorization: `Bearer ${token}` })
      const token = await tokens.of(tenantId, entry, signal)
      return {
        headers: withToken(token),
        async renew() {
          await tokens.drop(tenantId, entry)
          return withToken(await tokens.of(tenantId, entry, signal))
        },
      }
    },
  }
}
