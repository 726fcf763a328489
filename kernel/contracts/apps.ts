import { type Static, Type } from '@sinclair/typebox'
import { capability, slot } from '../plugin.ts'
import type { AppCall } from './delegation.ts'
import { type AppError, errorTable } from './errors.ts'
import type { ToolResult, ToolSpec } from './tools.ts'

/** A toolkit's name becomes part of its tools' names, for which model servers accept only these characters. */
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

/** `initiated`: the owner was given a link and has not returned yet. `expired`: the owner must connect the account again. */
export const connectionStates = ['initiated', 'active', 'expired', 'failed', 'revoked'] as const
export type ConnectionState = (typeof connectionStates)[number]

/** Whose account a toolkit uses: `none` (the toolkit has its own credentials), one per tenant, or one per end user. */
export type AccountOf = 'none' | 'tenant' | 'user'

/** A toolkit that is active for a tenant. */
export interface ToolkitInfo {
  readonly name: string
  readonly description?: string
  readonly connection: AccountOf
}

/** The result of a tool call. */
export interface AppResult extends ToolResult {
  /** The app's answer, for programs. `content` is for models. */
  readonly result: unknown
}

/** A connected account, as its provider returned it. */
export interface Grant {
  /** What the provider needs to use and to renew the account. It is stored encrypted, and decrypted only for this provider. */
  readonly secret: string
  /** Seconds for which the grant is valid. Undefined: unknown. */
  readonly seconds?: number
  /** True when the grant can be renewed without the account's owner. */
  readonly renewable: boolean
}

/** Why an account can no longer be used. `expired`: its owner must connect it again. `revoked`: its owner has withdrawn it. */
export interface Lost {
  readonly lost: 'expired' | 'failed' | 'revoked'
  /** A sentence for the tenant. */
  readonly reason: string
}

/** The account on whose behalf a provider is called. */
export interface AppCaller {
  readonly tenantId: string
  readonly toolkit: string
  /** The secret of the grant. Undefined for a toolkit without accounts. */
  readonly secret: string | undefined
  readonly signal: AbortSignal
}

/** An attempt to connect an account. */
export interface Connecting {
  readonly tenantId: string
  readonly toolkit: string
  /** Empty for the tenant's own account. */
  readonly endUserId: string
  /** The redirect URL, as registered with the authorization server. */
  readonly redirectUrl: string
  /** The OAuth state: it names this attempt, can be used once, and cannot be guessed. */
  readonly state: string
  readonly signal: AbortSignal
}

/**
 * A source of toolkits. A provider stores nothing: the plugin `apps` stores accounts, their states and their secrets. A provider rejects with
 * `app_unavailable` when it could not do what was requested, and with `connect_refused` when an account cannot be connected.
 */
export interface ToolkitProvider {
  /** The toolkits that are active for a tenant, by name. `names` restricts the result. */
  toolkits(tenantId: string, names?: readonly string[]): Promise<readonly ToolkitInfo[]>
  /** Undefined: the app refused the account. */
  tools(caller: AppCaller): Promise<readonly ToolSpec[] | undefined>
  /** The tools that are known without an account. Undefined: none. `old`: the list should be requested again. */
  knownTools?(
    tenantId: string,
    toolkit: string,
  ): Promise<{ readonly tools: readonly ToolSpec[]; readonly old: boolean } | undefined>
  /** Undefined: the app refused the account, and nothing was done. */
  call(caller: AppCaller, tool: string, input: Readonly<Record<string, unknown>>): Promise<AppResult | undefined>
  /** Returns the URL for the owner of the account, and data that `finish` gets back. */
  begin(connecting: Connecting): Promise<{ readonly url: string; readonly keep: string }>
  /** Called when the owner returned with these parameters. */
  finish(connecting: Omit<Connecting, 'state'>, keep: string, answer: Readonly<Record<string, string>>): Promise<Grant>
  /** Rejects on a temporary failure. */
  renew(caller: AppCaller & { readonly secret: string }): Promise<Grant | Lost>
  /** Revokes the account if possible; resolves when there is nothing to revoke. */
  revoke(caller: AppCaller & { readonly secret: string }): Promise<void>
  /**
   * Called with the former secret when its owner has connected the account again. A provider implements it if each connecting makes an account of
   * its own; where grants replace each other, ending the former one may end the new one too.
   */
  replaced?(caller: AppCaller & { readonly secret: string }, by: Grant): Promise<void>
}
/** Keyed by the name of the provider. If two providers have a toolkit of one name, the first provider by name wins. */
export const ToolkitProviders = slot<ToolkitProvider>('conductor.toolkit-providers')

/** Identifies an account. */
export interface AccountKey {
  readonly provider: string
  readonly toolkit: string
  /** Empty for the tenant's own account. */
  readonly endUserId: string
}

/** An account that can be used now. */
export interface Account {
  readonly id: string
  readonly secret: string
  /** Counts the grants of this account. A statement about an older grant is ignored. */
  readonly fence: string
}

/**
 * The accounts of tenants and their end users, stored encrypted. One conductor renews an account for all. Rejects with `app_not_connected` (409),
 * and with `app_unavailable` (502) when the account could not be renewed in time.
 */
export interface AppAccounts {
  /** The redirect URL for owners of accounts. Undefined: no account can be connected. */
  readonly redirectUrl: string | undefined
  /** A sentence that says why no account can be connected. */
  readonly missing: string
  use(tenantId: string, key: AccountKey, signal: AbortSignal): Promise<Account>
  /** Reports that the app refused this account. Returns another grant if the account can be renewed; otherwise its owner must connect it again. */
  refused(tenantId: string, key: AccountKey, account: Account, signal: AbortSignal): Promise<Account>
  /** Registers the providers, which renew the accounts connected through them. Call it in setup. */
  serve(providers: ReadonlyMap<string, ToolkitProvider>): void
}
export const AppAccounts = capability<AppAccounts>('conductor.app-accounts')

/** A tool of an app, as a run has it. */
export const AppTool = Type.Object({
  name: Type.String({ description: 'As the model calls it: it begins with the name of its toolkit.' }),
  description: Type.String(),
  inputSchema: Type.Record(Type.String(), Type.Unknown()),
  toolkit: Type.String(),
  /** The tool's name in the toolkit. Absent for the tool that explains how to connect the account. */
  tool: Type.Optional(Type.String()),
})
export type AppTool = Static<typeof AppTool>

/** What profiles and runs need from apps. */
export interface Apps {
  /** Those of `names` whose toolkits are not active for a tenant. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** The names of active toolkits, sorted; the first hundred. */
  names(tenantId: string): Promise<readonly string[]>
  /** The tools of these toolkits for a run, and a sentence for each toolkit that is not available. */
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

/** The end user of a run, from the metadata of the chat or of the request that started it. */
export function endUserOf(metadata: Readonly<Record<string, unknown>> | undefined): string | undefined {
  const id = metadata?.['end_user_id']
  return typeof id === 'string' && id !== '' ? id : undefined
}

/** Whether a run answers a visitor of a published agent. Chats record this in the run's metadata. */
export const answersVisitor = (metadata: Readonly<Record<string, unknown>> | undefined): boolean =>
  typeof metadata?.['public_run_id'] === 'string'

/** The sentence of an error, for people. */
export const sentenceOf = (error: AppError): string => error.sentence ?? error.code
