import { type AppAccounts, sentenceOf } from '#contracts/apps'
import type { Secrets } from '#contracts/secrets'
import { isAppError } from '#kernel'
import { tokenOf } from './authorization-code.ts'
import { accountOf, type Entry, mcpProvider, secretsOf } from './entry.ts'
import { catalogErrors } from './errors.ts'
import { basisOf, type Tokens } from './tokens.ts'

/** The headers that authenticate a request to an MCP server. */
export interface Sent {
  readonly headers: Readonly<Record<string, string>>
  /** Resolves to headers with a new token, after the server has refused this one. Absent when the entry has no token. */
  readonly renew?: () => Promise<Readonly<Record<string, string>>>
}

/** Resolves the headers of an entry to plain text: secrets, access tokens and accounts. */
export interface Credentials {
  /** Rejects as `Secrets.headers` does, and with `mcp_token_refused` (502). */
  of(tenantId: string, entry: Entry, signal: AbortSignal): Promise<Sent>
}

export function createCredentials(
  secrets: Secrets | undefined,
  tokens: Tokens | undefined,
  accounts: AppAccounts | undefined,
): Credentials {
  return {
    async of(tenantId, entry, signal) {
      const { name, headers = {}, oauth } = entry
      const plain =
        secrets && secretsOf({ headers }).length > 0
          ? await secrets.headers(tenantId, headers, `mcp-servers/${name}`)
          : headers
      const withToken = (token: string) => ({ ...plain, authorization: `Bearer ${token}` })
      if (oauth?.grant === 'authorization_code') {
        const account = await tenantAccount(accounts, tenantId, entry, signal)
        return {
          headers: withToken(account.token),
          renew: async () => withToken((await account.renew()).token),
        }
      }
      if (!oauth || !tokens) return { headers: plain }
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

interface TenantAccount {
  readonly token: string
  renew(): Promise<TenantAccount>
}

/** The account that the tenant itself has connected. An end user's account is used only for that user's own calls, so it is refused here. */
async function tenantAccount(
  accounts: AppAccounts | undefined,
  tenantId: string,
  entry: Entry,
  signal: AbortSignal,
): Promise<TenantAccount> {
  if (accountOf(entry) === 'user') throw catalogErrors.mcpTokenRefused({ message: ofUsers })
  if (!accounts) throw catalogErrors.mcpTokenRefused({ message: noAccounts })
  const key = { provider: mcpProvider, toolkit: entry.name, endUserId: '' }
  const got = async (using: ReturnType<AppAccounts['use']>): Promise<TenantAccount> => {
    const account = await using.catch((error: unknown) => {
      throw isAppError(error) ? catalogErrors.mcpTokenRefused({ cause: error, message: sentenceOf(error) }) : error
    })
    const { access: token, basis } = tokenOf(account.secret)
    if (basis !== basisOf(entry)) throw catalogErrors.mcpTokenRefused({ message: elsewhere })
    return { token, renew: () => got(accounts.refused(tenantId, key, account, signal)) }
  }
  return got(accounts.use(tenantId, key, signal))
}

/** The server has refused the token of the tenant's account, so the account is renewed. Does nothing when there is no account. */
export async function renewAccount(
  accounts: AppAccounts | undefined,
  tenantId: string,
  toolkit: string,
  signal: AbortSignal,
): Promise<void> {
  const key = { provider: mcpProvider, toolkit, endUserId: '' }
  try {
    const account = await accounts?.use(tenantId, key, signal)
    if (account) await accounts!.refused(tenantId, key, account, signal)
  } catch (error) {
    // The next request for the account reports this error.
    if (!isAppError(error)) throw error
  }
}

const ofUsers = 'Each end user has an account of their own with this server: profiles name it in `apps`.'
const noAccounts = 'This server keeps no accounts: its role file has no plugin `app-connections`.'
const elsewhere = 'The entry leads elsewhere by now: connect the account again, with POST /api/apps/{name}/connect.'
