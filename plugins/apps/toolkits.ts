import { setTimeout as sleep } from 'node:timers/promises'
import {
  type AppAccounts,
  type AppCaller,
  appErrors,
  type AppResult,
  isToolkitName,
  type ToolkitInfo,
  type ToolkitProvider,
} from '#contracts/apps'
import { type Caller, permitsServer, permitsTool } from '#contracts/auth'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import type { ToolSpec } from '#contracts/tools'
import { invalidField, isAppError, notFound } from '#kernel'
import { Pace } from '#kit'
import { Shares } from '#kit/turns'
import type { AppMetrics } from './metrics.ts'

/** A toolkit that is active for a tenant, with the provider that it belongs to. */
export interface ActiveToolkit extends ToolkitInfo {
  readonly provider: string
}

export interface ToolkitsOptions {
  readonly providers: ReadonlyMap<string, ToolkitProvider>
  readonly accounts: AppAccounts
  readonly limits: Pick<TenantLimits, 'of'> | undefined
  readonly metrics: AppMetrics
  /** Timeout of one call of an app, in ms. */
  readonly timeoutMs: number
  readonly stopping: AbortSignal
}

/** Concurrent calls that one conductor makes for a tenant, and the most calls that may wait. */
const each = 32
const mostWaiting = 200
/** The burst of calls that a tenant may make at once. Further calls wait, each for `longestMs` at most. Runners use the same limits. */
const pace = { atOnce: 20, longestMs: 30_000 } as const

/** The toolkits of all providers as one list, and their tools. */
export class Toolkits {
  readonly #options: ToolkitsOptions
  /** Sorted by the provider's name, so that a toolkit name that two providers use means the same toolkit on every conductor. */
  readonly #providers: readonly (readonly [string, ToolkitProvider])[]
  readonly #shares = new Shares({ each, mostWaiting, busy: () => appErrors.appBusy() })
  readonly #turns = new Pace(pace)

  constructor(options: ToolkitsOptions) {
    this.#options = options
    this.#providers = [...options.providers].toSorted(([a], [b]) => (a < b ? -1 : 1))
  }

  /** Sorted by name: all active toolkits, or those of `names`. */
  async active(tenantId: string, names?: readonly string[]): Promise<readonly ActiveToolkit[]> {
    const wanted = names?.filter(isToolkitName)
    if (wanted?.length === 0) return []
    const found = await Promise.all(
      this.#providers.map(async ([provider, { toolkits }]) =>
        (await toolkits(tenantId, wanted)).map((toolkit) => ({ ...toolkit, provider })),
      ),
    )
    const byName = new Map(
      found
        .flat()
        .toReversed()
        .map((toolkit) => [toolkit.name, toolkit]),
    )
    return [...byName.values()].toSorted((a, b) => (a.name < b.name ? -1 : 1))
  }
  /** Rejects with 403 `toolkit_not_active`. */
  async find(tenantId: string, name: string): Promise<ActiveToolkit> {
    const [toolkit] = await this.active(tenantId, [name])
    if (!toolkit) throw appErrors.toolkitNotActive()
    return toolkit
  }
  /** As `find`, for a caller. A toolkit that the caller's key may not use gets the same error code. */
  async findFor({ tenantId, mcp }: Caller, name: string): Promise<ActiveToolkit> {
    if (!permitsServer(mcp, name)) throw appErrors.toolkitNotActive({ message: notOfKey })
    return this.find(tenantId, name)
  }
  providerOf({ provider }: Pick<ActiveToolkit, 'provider'>): ToolkitProvider {
    return this.#options.providers.get(provider)!
  }

  /** The tools as the app defines them. A list that is already known needs no account. */
  async tools(tenantId: string, toolkit: ActiveToolkit, endUserId: string | undefined): Promise<readonly ToolSpec[]> {
    const provider = this.providerOf(toolkit)
    const known = await provider.knownTools?.(tenantId, toolkit.name)
    if (known && !known.old) return known.tools
    try {
      return await this.#as(tenantId, toolkit, endUserId, (caller) => provider.tools(caller))
    } catch (error) {
      // An old list is better than an error.
      if (known && isAppError(error)) return known.tools
      throw error
    }
  }
  /** Rejects with 409 `app_not_connected` unless a usable account is connected. */
  async check(tenantId: string, toolkit: ActiveToolkit, endUserId: string | undefined): Promise<void> {
    await this.#as(tenantId, toolkit, endUserId, async () => true)
  }
  /** Paces calls of the API; calls of runs are paced by their runner. Rejects with 429 `limit_reached`. */
  async waitForTurn(tenantId: string): Promise<void> {
    const most = (this.#options.limits?.of(tenantId) ?? defaultLimits).toolCallsPerMinute
    const waitMs = this.#turns.turnOf(tenantId, 60_000 / most)
    if (waitMs === undefined) throw overLimit('toolCallsPerMinute', most)
    if (waitMs > 0) await sleep(waitMs, undefined, { ref: false })
  }
  async call(
    tenantId: string,
    toolkit: ActiveToolkit,
    call: {
      readonly tool: string
      readonly input: Readonly<Record<string, unknown>>
      readonly endUserId?: string | undefined
    },
    signal?: AbortSignal,
  ): Promise<AppResult> {
    const { metrics } = this.#options
    const provider = this.providerOf(toolkit)
    const labels = { provider: toolkit.provider }
    try {
      const result = await this.#as(
        tenantId,
        toolkit,
        call.endUserId,
        (caller) => provider.call(caller, call.tool, call.input),
        signal,
      )
      metrics.calls.inc({ ...labels, outcome: result.ok ? 'ok' : 'failed' })
      return result
    } catch (error) {
      metrics.calls.inc({ ...labels, outcome: isAppError(error) ? error.code : 'threw' })
      throw error
    }
  }

  /** Makes a request with the owner's account. When the app refuses the grant, the request is repeated once with a renewed one. */
  async #as<T>(
    tenantId: string,
    toolkit: ActiveToolkit,
    endUserId: string | undefined,
    ask: (caller: AppCaller) => Promise<T | undefined>,
    cancelled?: AbortSignal,
  ): Promise<T> {
    const { accounts, timeoutMs, stopping } = this.#options
    const signal = AbortSignal.any([stopping, AbortSignal.timeout(timeoutMs), ...(cancelled ? [cancelled] : [])])
    return this.#shares.take(tenantId, async () => {
      const caller = { tenantId, toolkit: toolkit.name, signal }
      if (toolkit.connection === 'none') {
        const answer = await ask({ ...caller, secret: undefined })
        if (answer === undefined) throw appErrors.appUnavailable({ message: 'The app does not take its credentials.' })
        return answer
      }
      const key = { provider: toolkit.provider, toolkit: toolkit.name, endUserId: ownerOf(toolkit, endUserId) }
      const account = await accounts.use(tenantId, key, signal)
      const first = await ask({ ...caller, secret: account.secret })
      if (first !== undefined) return first
      const again = await accounts.refused(tenantId, key, account, signal)
      const second = await ask({ ...caller, secret: again.secret })
      if (second === undefined) throw appErrors.appUnavailable({ message: 'The app does not take the account.' })
      return second
    })
  }
}

const notOfKey = 'The calling key may not use this toolkit: its `mcpServers` do not name it.'

/** Rejects with 404 for a tool that the caller's key may not use. */
export function checkTool({ mcp }: Caller, toolkit: string, tool: string): void {
  if (permitsTool(mcp, toolkit, tool)) return
  const message = `The calling key may not use the tool '${tool}': its \`mcpToolPermissions\` do not name it.`
  throw notFound({ message })
}

/** The owner of the account: '' is the tenant. 400 when each end user has an account and no end user is named. */
export function ownerOf({ connection }: Pick<ToolkitInfo, 'connection'>, endUserId: string | undefined): string {
  if (connection !== 'user') return ''
  if (endUserId === undefined) {
    throw invalidField('endUserId', 'must name the person: each end user has an account of their own in this toolkit')
  }
  return endUserId
}
