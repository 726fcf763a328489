import { type AppCaller, appErrors, type AppResult, type Grant, type Lost, type ToolkitProvider } from '#contracts/apps'
import { secretOf, type Secrets } from '#contracts/secrets'
import type { ToolSpec } from '#contracts/tools'
import { isAppError, notFound, type TenantList } from '#kernel'
import { type ComposioClient, unavailable } from './client.ts'

/** A toolkit that the operator offers. */
interface OfferedToolkit {
  readonly authConfig?: string | undefined
  readonly connection: 'tenant' | 'user'
  readonly description?: string | undefined
  readonly version?: string | undefined
  readonly tools?: readonly string[] | undefined
  readonly tenants: TenantList
}

interface ComposioOptions {
  readonly client: ComposioClient
  /** A key, or `secret://<name>`, in which case each tenant has its own project. */
  readonly apiKey: string
  readonly secrets: Secrets | undefined
  readonly toolkits: ReadonlyMap<string, OfferedToolkit>
  /** How long a list of tools is cached, in milliseconds. */
  readonly keepMs: number
}

/** The stored data of an account. Composio keeps and renews the account's tokens. */
interface Kept {
  readonly account: string
  readonly userId: string
}

/** How often an account is checked, because it may have ended at Composio. */
const lookSeconds = 15 * 60
/** Tools per page, and the most tools that are read of one toolkit. */
const pageSize = 500
const mostTools = 2_000
/** The most lists of tools in memory. */
const mostLists = 200

interface Listed {
  readonly at: number
  readonly tools: readonly ToolSpec[]
}

/** Toolkits of Composio. Composio keeps the accounts; this server stores only their ids. */
export class ComposioProvider implements ToolkitProvider {
  readonly #options: ComposioOptions
  readonly #lists = new Map<string, Listed>()

  constructor(options: ComposioOptions) {
    this.#options = options
  }

  readonly toolkits: ToolkitProvider['toolkits'] = async (tenantId, names) =>
    [...this.#options.toolkits]
      .filter(([name, { tenants }]) => tenants.allows(tenantId) && (!names || names.includes(name)))
      .map(([name, { connection, description }]) => ({
        name,
        connection,
        ...(description === undefined ? {} : { description }),
      }))
      .toSorted((a, b) => (a.name < b.name ? -1 : 1))

  /** The tool definitions are Composio's and equal for all accounts, so no account is needed. */
  readonly knownTools: NonNullable<ToolkitProvider['knownTools']> = async (tenantId, toolkit) => {
    const apiKey = await this.#keyOf(tenantId)
    const list = await this.#list({ tenantId, toolkit, apiKey, signal: AbortSignal.timeout(20_000) })
    return { tools: list.tools, old: false }
  }
  readonly tools: ToolkitProvider['tools'] = async ({ tenantId, toolkit }) =>
    (await this.knownTools(tenantId, toolkit))!.tools

  readonly call: ToolkitProvider['call'] = async (caller, tool, input) => {
    const { tenantId, toolkit, secret, signal } = caller
    const { tools, version } = this.#offered(toolkit)
    const apiKey = await this.#keyOf(tenantId)
    const known = await this.#list({ tenantId, toolkit, apiKey, signal })
    if ((tools && !tools.includes(tool)) || !known.tools.some(({ name }) => name === tool)) {
      throw notFound({ message: `The toolkit has no tool '${tool.slice(0, 100)}'.` })
    }
    const { account, userId } = keptOf(secret)
    const body = {
      connected_account_id: account,
      user_id: userId,
      arguments: input,
      ...(version === undefined ? {} : { version }),
    }
    const path = `/v3/tools/execute/${encodeURIComponent(tool)}`
    const answer = await this.#options.client.ask({ method: 'POST', path, apiKey, body, repeatable: false, signal })
    if (answer.status < 400) return resultOf(answer.body)
    // Composio answers alike for wrong arguments and for an ended account, so the account itself is checked.
    const lost = await this.#look(apiKey, account, signal)
    return lost ? undefined : refusalOf(answer.body)
  }

  readonly begin: ToolkitProvider['begin'] = async ({ tenantId, toolkit, endUserId, redirectUrl, state, signal }) => {
    const apiKey = await this.#keyOf(tenantId)
    const back = new URL(redirectUrl)
    back.searchParams.set('state', state)
    const userId = userOf(tenantId, endUserId)
    const body = {
      auth_config_id: await this.#authConfig(apiKey, toolkit, signal),
      user_id: userId,
      callback_url: back.href,
    }
    const path = '/v3/connected_accounts/link'
    const answer = await this.#options.client.ask({ method: 'POST', path, apiKey, body, repeatable: false, signal })
    const { redirect_url: url, connected_account_id: account } = answer.body as Record<string, unknown>
    if (answer.status >= 400 || typeof url !== 'string' || typeof account !== 'string' || !url.startsWith('https://')) {
      throw appErrors.connectRefused({ message: `Composio gives no link for this toolkit (${answer.status}).` })
    }
    const kept: Kept = { account, userId }
    return { url, keep: JSON.stringify(kept) }
  }

  /** Asks Composio for the state of the account, and does not trust the parameters of the redirect. */
  readonly finish: ToolkitProvider['finish'] = async ({ tenantId, signal }, keep) => {
    const lost = await this.#lost(await this.#keyOf(tenantId), keptOf(keep).account, signal)
    if (lost) throw appErrors.connectRefused({ message: lost.reason })
    return grantOf(keep)
  }

  readonly renew: ToolkitProvider['renew'] = async ({ tenantId, secret, signal }) =>
    (await this.#lost(await this.#keyOf(tenantId), keptOf(secret).account, signal)) ?? grantOf(secret)

  /** Revokes the account at Composio, and at the app if Composio can do that. */
  readonly revoke: ToolkitProvider['revoke'] = async ({ tenantId, secret, signal }) => {
    const apiKey = await this.#keyOf(tenantId)
    const { account } = keptOf(secret)
    const path = `/v3.1/connected_accounts/${encodeURIComponent(account)}/revoke`
    await this.#options.client.ask({ method: 'POST', path, apiKey, body: {}, repeatable: true, signal })
    await this.#delete(apiKey, account, signal)
  }
  /** Each link makes another account. The former one is deleted without being revoked at the app, which may know both as one. */
  readonly replaced: NonNullable<ToolkitProvider['replaced']> = async ({ tenantId, secret, signal }, by) => {
    const { account } = keptOf(secret)
    if (account !== keptOf(by.secret).account) await this.#delete(await this.#keyOf(tenantId), account, signal)
  }

  #offered(toolkit: string): OfferedToolkit {
    const offered = this.#options.toolkits.get(toolkit)
    if (!offered) throw appErrors.toolkitNotActive()
    return offered
  }
  async #keyOf(tenantId: string): Promise<string> {
    const { apiKey, secrets } = this.#options
    const name = secretOf(apiKey)
    if (name === undefined) return apiKey
    try {
      return (await secrets!.resolve(tenantId, name, 'apps-composio')).value
    } catch (error) {
      // The tenant wrote the secret's name, not the caller.
      throw isAppError(error) ? unavailable(error.sentence ?? error.code, error) : error
    }
  }
  /** The auth configuration that the operator named, otherwise the first one that is enabled in the key's project. */
  async #authConfig(apiKey: string, toolkit: string, signal: AbortSignal): Promise<string> {
    const { authConfig } = this.#offered(toolkit)
    if (authConfig !== undefined) return authConfig
    const path = `/v3/auth_configs?${new URLSearchParams({ toolkit_slug: toolkit, limit: '50' }).toString()}`
    const answer = await this.#options.client.ask({ method: 'GET', path, apiKey, repeatable: true, signal })
    const { items } = answer.body as { items?: { id?: unknown; status?: unknown }[] }
    const found = items?.find(({ id, status }) => typeof id === 'string' && status !== 'DISABLED')
    if (!found)
      throw appErrors.connectRefused({ message: 'The project at Composio has no auth config for this toolkit.' })
    return String(found.id)
  }
  async #list(of: Omit<AppCaller, 'secret'> & { readonly apiKey: string }): Promise<Listed> {
    const { keepMs, apiKey: key } = this.#options
    const { tenantId, toolkit, apiKey, signal } = of
    // With a single key for all tenants the definitions are shared by all tenants.
    const whose = JSON.stringify([secretOf(key) === undefined ? '' : tenantId, toolkit])
    const known = this.#lists.get(whose)
    if (known && Date.now() - known.at < keepMs) return known
    const { tools: allowed, version } = this.#offered(toolkit)
    const tools: ToolSpec[] = []
    let cursor: string | undefined
    do {
      const query = new URLSearchParams({
        toolkit_slug: toolkit,
        limit: String(pageSize),
        include_deprecated: 'false',
        ...(version === undefined ? {} : { toolkit_versions: version }),
        ...(cursor === undefined ? {} : { cursor }),
      })
      const path = `/v3/tools?${query.toString()}`
      const { status, body } = await this.#options.client.ask({ method: 'GET', path, apiKey, repeatable: true, signal })
      const page = body as { items?: unknown; next_cursor?: unknown }
      if (status >= 400 || !Array.isArray(page.items)) throw unavailable(`Composio lists no tools (${status}).`)
      tools.push(...page.items.flatMap(specOf))
      cursor = typeof page.next_cursor === 'string' && page.next_cursor !== '' ? page.next_cursor : undefined
    } while (cursor !== undefined && tools.length < mostTools)
    const list = { at: Date.now(), tools: allowed ? tools.filter(({ name }) => allowed.includes(name)) : tools }
    this.#lists.delete(whose)
    this.#lists.set(whose, list)
    for (const oldest of this.#lists.keys()) {
      if (this.#lists.size <= mostLists) break
      this.#lists.delete(oldest)
    }
    return list
  }
  /** Like `#look`. A lost account is deleted, since nobody knows of it here from then on. */
  async #lost(apiKey: string, account: string, signal: AbortSignal): Promise<Lost | undefined> {
    const why = await this.#look(apiKey, account, signal)
    if (why) await this.#delete(apiKey, account, signal)
    return why
  }
  async #delete(apiKey: string, account: string, signal: AbortSignal): Promise<void> {
    const path = `/v3/connected_accounts/${encodeURIComponent(account)}`
    const { status } = await this.#options.client.ask({ method: 'DELETE', path, apiKey, repeatable: true, signal })
    if (status >= 400 && status !== 404) throw unavailable(`Composio answered ${status}.`)
  }
  /** Why the account is lost. Undefined: the account works. */
  async #look(apiKey: string, account: string, signal: AbortSignal): Promise<Lost | undefined> {
    const path = `/v3/connected_accounts/${encodeURIComponent(account)}`
    const { status, body } = await this.#options.client.ask({ method: 'GET', path, apiKey, repeatable: true, signal })
    if (status === 404) return { lost: 'revoked', reason: 'Composio does not have the account any more.' }
    if (status >= 400) throw unavailable(`Composio answered ${status}.`)
    return states[String((body as { status?: unknown }).status)] ?? undefined
  }
}

const lost = (state: Lost['lost'], reason: string): Lost => ({ lost: state, reason })
/** What Composio's account states mean here. `ACTIVE` and unknown states do not end an account. */
const states: Readonly<Record<string, Lost | undefined>> = {
  INITIALIZING: lost('failed', 'The account was not connected.'),
  INITIATED: lost('failed', 'The account was not connected.'),
  EXPIRED: lost('expired', 'Composio cannot renew the access to the account any more.'),
  FAILED: lost('failed', 'The account could not be connected.'),
  INACTIVE: lost('failed', 'The account is switched off at Composio.'),
  REVOKED: lost('revoked', 'The access to the account was revoked.'),
}

/** A person's id at Composio, unique among all tenants of this server because tenant ids contain no colon. */
const userOf = (tenantId: string, endUserId: string): string =>
  endUserId === '' ? `tenant:${tenantId}` : `user:${tenantId}:${endUserId}`

const keptOf = (secret: string | undefined): Kept => JSON.parse(secret ?? '{}') as Kept
const grantOf = (secret: string): Grant => ({ secret, seconds: lookSeconds, renewable: true })

interface Tool {
  readonly slug?: unknown
  readonly name?: unknown
  readonly description?: unknown
  readonly input_parameters?: unknown
}

function specOf(item: unknown): ToolSpec[] {
  const { slug, name, description, input_parameters: input } = (item ?? {}) as Tool
  if (typeof slug !== 'string') return []
  const text = typeof description === 'string' ? description : typeof name === 'string' ? name : slug
  return [{ name: slug, description: text, inputSchema: schemaOf(input) }]
}

/** Reads a JSON Schema of an object, or Composio's newer form: the properties of one, each of which says whether it is required. */
function schemaOf(input: unknown): ToolSpec['inputSchema'] {
  if (typeof input !== 'object' || input === null) return { type: 'object' }
  const schema = input as Record<string, unknown>
  if (schema['type'] === 'object' || 'properties' in schema) return { type: 'object', ...schema }
  const fields = Object.entries(schema).filter(
    (entry): entry is [string, Record<string, unknown>] => typeof entry[1] === 'object' && entry[1] !== null,
  )
  return {
    type: 'object',
    properties: Object.fromEntries(fields.map(([key, field]) => [key, without(field, 'required')])),
    required: fields.filter(([, { required }]) => required === true).map(([key]) => key),
  }
}

const without = (field: Record<string, unknown>, key: string): Record<string, unknown> =>
  Object.fromEntries(Object.entries(field).filter(([name]) => name !== key))

function resultOf(body: unknown): AppResult {
  const { successful, data, error } = (body ?? {}) as { successful?: unknown; data?: unknown; error?: unknown }
  const ok = successful === true
  return { ok, content: ok ? textOf(data) : textOf(error ?? data), result: body }
}

/** Composio's own message about a failed call, for the author of the arguments. */
function refusalOf(body: unknown): AppResult {
  const { error } = (body ?? {}) as { error?: { message?: unknown } }
  const message = typeof error?.message === 'string' ? error.message.slice(0, 2_000) : 'Composio refused the call.'
  return { ok: false, content: message, result: body }
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value ?? null))
