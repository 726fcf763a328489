import { type Static, Type } from '@sinclair/typebox'
import { capability, slot } from '../plugin.ts'
import type { AppCall } from './delegation.ts'
import { type AppError, errorTable } from './errors.ts'
import type { ToolResult, ToolSpec } from './tools.ts'

/** A toolkit's name becomes part of the names of its tools, which model servers accept in these characters. */
const toolkitPattern = '^[A-Za-z0-9_-]{1,64}$'
const toolkitForm = new RegExp(toolkitPattern)
export const isToolkitName = (text: string): boolean => toolkitForm.test(text)

export const appErrors = errorTable('apps', {
  toolkitNotActive: {
    status: 403,
    message: 'No toolkit of this name is active for this tenant; GET /api/apps lists those that are.',
  },
  unknownToolkit: {
    named: true,
    status: 400,
    message: 'No toolkit of this name is active for this tenant; GET /api/apps lists those that are.',
  },
  appNotConnected: {
    status: 409,
    about:
      'The account for this call is not connected, or no longer; the sentence says why. POST /api/apps/{toolkit}/connect gives a link.',
  },
  connectRefused: { status: 400, about: 'The account cannot be connected; the sentence says why.' },
  appUnavailable: {
    status: 502,
    retry: 'later',
    about: 'The app or its provider failed; the sentence says what went wrong.',
  },
  appBusy: { status: 503, retry: true, message: 'Many apps are being called at the moment; try again shortly.' },
  appsUnavailable: {
    status: 503,
    message: 'Connected accounts need a PostgreSQL database and AGENT_ORC_MASTER_KEY on the conductor.',
  },
})

/** `initiated`: its owner has a link, and has not come back yet. `expired`: its owner has to connect again. */
export const connectionStates = ['initiated', 'active', 'expired', 'failed', 'revoked'] as const
export type ConnectionState = (typeof connectionStates)[number]

/** Whose account a toolkit uses: none (it has credentials of its own), one of the tenant, or one of each end user. */
export type AccountOf = 'none' | 'tenant' | 'user'

/** A toolkit that is active for a tenant. */
export interface ToolkitInfo {
  readonly name: string
  readonly description?: string
  readonly connection: AccountOf
}

/** What a call of a tool came to. */
export interface AppResult extends ToolResult {
  /** As the app answered, for programs; `content` is for models. */
  readonly result: unknown
}

/** A connected account, as its provider left it. */
export interface Grant {
  /** What the provider needs to use and to renew the account. It is kept encrypted, and opened for this provider alone. */
  readonly secret: string
  /** For how long it holds; undefined: nobody says. */
  readonly seconds?: number
  /** It can be renewed without its owner. */
  readonly renewable: boolean
}

/** The account cannot be used any more. `expired`: its owner has to connect it again. `revoked`: they have taken it back. */
export interface Lost {
  readonly lost: 'expired' | 'failed' | 'revoked'
  /** A sentence for the tenant. */
  readonly reason: string
}

/** Whom a provider is asked for. */
export interface AppCaller {
  readonly tenantId: string
  readonly toolkit: string
  /** The secret of the grant; undefined for a toolkit without accounts. */
  readonly secret: string | undefined
  readonly signal: AbortSignal
}

/** An account that is to be connected. */
export interface Connecting {
  readonly tenantId: string
  readonly toolkit: string
  /** '' for the tenant's own account. */
  readonly endUserId: string
  /** Where its owner is sent back to, as registered with whoever asks them. */
  readonly redirectUrl: string
  /** Comes back with its owner: it names this attempt, once, and cannot be guessed. */
  readonly state: string
  readonly signal: AbortSignal
}

/**
 * Where toolkits come from. A provider keeps nothing: accounts, their states and secrets are kept by the plugin `apps`. It rejects with
 * `app_unavailable` when it could not do what it was asked, and with `connect_refused` when an account cannot be connected.
 */
export interface ToolkitProvider {
  /** Those that are active for a tenant, by name: all, or those of `names`. */
  toolkits(tenantId: string, names?: readonly string[]): Promise<readonly ToolkitInfo[]>
  /** Undefined: the account is not taken. */
  tools(caller: AppCaller): Promise<readonly ToolSpec[] | undefined>
  /** What is known of the tools without an account; undefined when that is nothing. `old`: it had better be asked for again. */
  knownTools?(
    tenantId: string,
    toolkit: string,
  ): Promise<{ readonly tools: readonly ToolSpec[]; readonly old: boolean } | undefined>
  /** Undefined: the account is not taken, and nothing was done. */
  call(caller: AppCaller, tool: string, input: Readonly<Record<string, unknown>>): Promise<AppResult | undefined>
  /** Where the owner of the account is to be sent, and what `finish` needs to know again. */
  begin(connecting: Connecting): Promise<{ readonly url: string; readonly keep: string }>
  /** The owner came back, with these parameters. */
  finish(connecting: Omit<Connecting, 'state'>, keep: string, answer: Readonly<Record<string, string>>): Promise<Grant>
  /** Rejects for what may pass by itself. */
  renew(caller: AppCaller & { readonly secret: string }): Promise<Grant | Lost>
  /** Takes the account back where that can be done; resolves when there is nothing to take back. */
  revoke(caller: AppCaller & { readonly secret: string }): Promise<void>
}
/** Keyed by the name of the provider. Where two have a toolkit of one name, the first by this name has it. */
export const ToolkitProviders = slot<ToolkitProvider>('conductor.toolkit-providers')

/** Which account is meant. */
export interface AccountKey {
  readonly provider: string
  readonly toolkit: string
  /** '' for the tenant's own. */
  readonly endUserId: string
}

/** An account that can be used now. */
export interface Account {
  readonly id: string
  readonly secret: string
  /** Counts the grants of this account: what is said of an older one is not said of this one. */
  readonly fence: string
}

/**
 * The accounts of tenants and their end users: kept encrypted, and renewed once for all conductors. Rejects with `app_not_connected`
 * (409), and with `app_unavailable` (502) when it could not be renewed in time.
 */
export interface AppAccounts {
  /** Where owners of accounts come back to; undefined where nothing can be connected. */
  readonly redirectUrl: string | undefined
  /** Why nothing can be connected, for people. */
  readonly missing: string
  use(tenantId: string, key: AccountKey, signal: AbortSignal): Promise<Account>
  /** The app does not take this account: another grant of it, where it can be renewed; else its owner has to connect it again. */
  refused(tenantId: string, key: AccountKey, account: Account, signal: AbortSignal): Promise<Account>
  /** Called in setup, by whoever has the providers: they renew what was connected through them. */
  serve(providers: ReadonlyMap<string, ToolkitProvider>): void
}
export const AppAccounts = capability<AppAccounts>('conductor.app-accounts')

/** A tool of an app, as a run has it. */
export const AppTool = Type.Object({
  name: Type.String({ description: 'As the model calls it: it begins with the name of its toolkit.' }),
  description: Type.String(),
  inputSchema: Type.Record(Type.String(), Type.Unknown()),
  toolkit: Type.String(),
  /** Its name in the toolkit; absent for the one that tells how to connect the account. */
  tool: Type.Optional(Type.String()),
})
export type AppTool = Static<typeof AppTool>

/** What profiles and runs need of apps. */
export interface Apps {
  /** The names of toolkits that are not active for a tenant. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** Those that are, sorted; the first hundred. */
  names(tenantId: string): Promise<readonly string[]>
  /** The tools of these toolkits for a run, and a sentence for each toolkit that it has to do without. */
  toolsFor(
    tenantId: string,
    toolkits: readonly string[],
    endUserId: string | undefined,
  ): Promise<{
    readonly tools: readonly AppTool[]
    readonly unavailable: readonly { readonly toolkit: string; readonly message: string }[]
  }>
  /** Never rejects: a failure is a sentence for the model. */
  call(tenantId: string, call: AppCall['app'], endUserId: string | undefined, signal: AbortSignal): Promise<ToolResult>
}
export const Apps = capability<Apps>('conductor.apps')

/** The end user for whom a run is, by its metadata: chats say it there, and so may whoever starts a run. */
export function endUserOf(metadata: Readonly<Record<string, unknown>> | undefined): string | undefined {
  const id = metadata?.['end_user_id']
  return typeof id === 'string' && id !== '' ? id : undefined
}

/** A sentence of an error for people. */
export const sentenceOf = (error: AppError): string => error.sentence ?? error.code
