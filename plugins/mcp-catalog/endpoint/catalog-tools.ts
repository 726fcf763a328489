import { setTimeout as sleep } from 'node:timers/promises'
import {
  type CallToolResult,
  invalidParams,
  limited,
  type ListToolsResult,
  type ServedTools,
  type ToolCall,
} from '#kit/mcp-server'
import { toolNames } from '#kit/mcp'
import { Pace } from '#kit'
import { type Caller, type McpPermissions, permitsServer, permitsTool } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import type { McpServer, McpServers } from '#contracts/mcp-servers'
import { isAppError } from '#kernel'
import type { ConfigEntries } from '../config-entries.ts'
import type { FoundTool } from '../discoveries.store.ts'
import { type Discoveries, stateOf } from '../discovery.ts'
import type { CatalogMetrics } from '../metrics.ts'
import { type ServedEntry, servedEntries, servedNames } from './served.store.ts'
import { type CallOutcome, nothingOf, type Passed, type Upstreams } from './upstreams.ts'

/** The size of a page of tools. The last tool of a page may exceed the limit in bytes. */
const toolsOfPage = 500
const bytesOfPage = 1024 * 1024
/** How many entries one query reads, and how many bytes their tools may take on disk together. */
const entriesAtOnce = 25
const bytesAtOnce = 512 * 1024
/** How long a list waits for servers that have never been asked. A late server is missing from this list and appears in the next one. */
const patienceMs = 3_000
/** The burst of calls that a tenant may make at once. Further calls wait, each for `longestMs` at most. Runners use the same limits. */
const pace = { atOnce: 20, longestMs: 30_000 } as const
/** A request that reads tool definitions counts as this many calls. */
const turnsOfReading = 10
/** How long calls may go on with the old version of an entry after it has changed. */
const resolvedMs = 1_000

export interface CatalogToolsOptions {
  readonly database: Database
  readonly config: ConfigEntries
  readonly servers: Pick<McpServers, 'resolve'>
  readonly discoveries: Discoveries
  readonly upstreams: Upstreams
  readonly limits: Pick<TenantLimits, 'of'> | undefined
  readonly metrics: CatalogMetrics
  readonly keepMs: number
  /** Called when the server has refused the token of an entry. */
  dropToken(tenantId: string, entry: string): Promise<void>
}

/** A tool by its entry and by the name that the server gives it. */
interface Meant {
  readonly entry: string
  readonly tool: string
}

/** Where a page of the list begins. */
type Place = readonly [entry: string, index: number]

const names = toolNames('')

/** The tools of a tenant's catalog: those of active entries that the entry allows, an admin has accepted and the caller's key permits. */
export class CatalogTools {
  readonly #options: CatalogToolsOptions
  readonly #turns = new Pace(pace)
  readonly #resolved = new Map<string, Promise<McpServer | string>>()

  constructor(options: CatalogToolsOptions) {
    this.#options = options
  }

  /** The tools that a caller may use, named `<entry>__<tool>`. With `only`, the tools of that entry under the server's own names. */
  of(caller: Caller, only?: string): ServedTools {
    return {
      list: (cursor) => this.#list(caller, only, cursor),
      call: (call) => this.#call(caller, only, call),
      ...(only === undefined ? {} : { pass: (...asked) => this.#pass(caller, only, asked, true) }),
    }
  }

  async #list(
    { tenantId, mcp }: Caller,
    only: string | undefined,
    cursor: string | undefined,
  ): Promise<ListToolsResult> {
    const { database, config } = this.#options
    const place = cursor === undefined ? undefined : placeOf(cursor)
    const refusal = await this.#turn(tenantId, turnsOfReading)
    if (refusal !== undefined) throw limited(refusal)
    const all = await servedNames(database, config, tenantId)
    const left = all.filter(
      ({ name }) => (only === undefined || name === only) && permitsServer(mcp, name) && (!place || name >= place[0]),
    )
    const tools: ListToolsResult['tools'] = []
    const deadline = AbortSignal.timeout(patienceMs)
    let bytes = 0
    while (left.length > 0) {
      const batch = await this.#read(tenantId, takeBatch(left), deadline)
      for (const served of batch) {
        const own = toolsOf(served, mcp)
        const from = place?.[0] === served.entry.name ? place[1] : 0
        for (let index = from; index < own.length; index++) {
          if (tools.length === toolsOfPage || bytes > bytesOfPage) {
            return { tools, nextCursor: cursorOf([served.entry.name, index]) }
          }
          const { name } = own[index]!
          const { shown, size } = shownAs(
            own[index]!,
            only === undefined ? names.nameOf(served.entry.name, name) : name,
          )
          bytes += size
          tools.push(shown)
        }
      }
    }
    return { tools }
  }

  /** Reads the tools of some entries. Servers that were never asked are asked now; old lists are renewed in the background. */
  async #read(tenantId: string, batch: readonly string[], deadline: AbortSignal): Promise<readonly ServedEntry[]> {
    const { database, config, discoveries, keepMs } = this.#options
    const entries = await servedEntries(database, config, tenantId, batch, keepMs)
    const waiting = new AbortController()
    const late = sleep(patienceMs, undefined, { signal: AbortSignal.any([deadline, waiting.signal]) }).catch(() => {})
    const known = await Promise.all(
      entries.map(async (served) => {
        if (served.tools) {
          if (served.old) discoveries.refresh(tenantId, served.entry)
          return served
        }
        const asked = discoveries.current(tenantId, served.entry).catch(() => undefined)
        const found = (await Promise.race([asked, late])) ?? undefined
        return { ...served, tools: found?.tools ?? [], accepted: found?.accepted ?? {} }
      }),
    )
    waiting.abort()
    return known
  }

  async #call(caller: Caller, only: string | undefined, call: ToolCall): Promise<CallToolResult> {
    const { tenantId } = caller
    const said = only === undefined ? names.partsOf(call.name) : { server: only, tool: call.name }
    const refusal = await this.#turn(tenantId, said ? 1 : turnsOfReading, call.signal)
    if (refusal !== undefined) return this.#end(tenantId, said?.server, 'limited', failed(refusal))
    const meant = said ? { entry: said.server, tool: said.tool } : await this.#find(caller, call.name)
    if (!meant || !permitsTool(caller.mcp, meant.entry, meant.tool)) throw noTool(call.name)
    const { outcome, result } = await this.#ask(tenantId, meant, call, true)
    return this.#end(tenantId, meant.entry, outcome, result)
  }

  async #ask(
    tenantId: string,
    meant: Meant,
    call: ToolCall,
    again: boolean,
  ): Promise<{ readonly outcome: CallOutcome; readonly result: CallToolResult }> {
    const { upstreams, dropToken } = this.#options
    const { entry, tool } = meant
    const server = await this.#resolve(tenantId, entry)
    if (typeof server === 'string') return { outcome: 'refused', result: failed(server) }
    if (server.tools && !server.tools.some(({ name }) => name === tool)) throw noTool(call.name)
    const called = await upstreams.call(tenantId, server, tool, call)
    if (called.outcome !== 'unauthorized' || !again) return called
    await dropToken(tenantId, entry)
    this.#resolved.delete(keyOf(tenantId, entry))
    return this.#ask(tenantId, meant, call, false)
  }

  /**
   * Passes requests for resources and prompts to one server. Nobody reviews resources and prompts, and no list of tools covers them. So they are open
   * only when neither the entry nor the caller's key restricts the server.
   */
  async #pass(caller: Caller, entry: string, asked: Passed, again: boolean): Promise<object> {
    const { tenantId, mcp } = caller
    const [method, , signal] = asked
    const refusal = await this.#turn(tenantId, 1, signal)
    if (refusal !== undefined) throw limited(refusal)
    const server = await this.#resolve(tenantId, entry)
    if (typeof server === 'string') throw limited(server)
    const isOpen = permitsServer(mcp, entry) && !(mcp?.tools && Object.hasOwn(mcp.tools, entry)) && !server.tools
    if (!isOpen) return nothingOf(method)
    const answer = await this.#options.upstreams.pass(tenantId, server, ...asked)
    if (answer !== 'unauthorized') return answer
    if (!again) throw limited(`'${entry}' does not accept the credentials of the entry.`)
    await this.#options.dropToken(tenantId, entry)
    this.#resolved.delete(keyOf(tenantId, entry))
    return this.#pass(caller, entry, asked, false)
  }

  /** The address and headers of an entry's server, or the reason why the server cannot be asked. Calls within `resolvedMs` share one look-up. */
  #resolve(tenantId: string, entry: string): Promise<McpServer | string> {
    const key = keyOf(tenantId, entry)
    const known = this.#resolved.get(key)
    if (known) return known
    const resolving = this.#options.servers.resolve(tenantId, [entry]).then(
      ({ servers: [server], unavailable: [reason] }) => server ?? reason?.message ?? `'${entry}' cannot be asked.`,
      (error: unknown) => {
        if (isAppError(error) && error.status < 500) return error.sentence ?? error.code
        this.#resolved.delete(key)
        throw error
      },
    )
    this.#resolved.set(key, resolving)
    // The result holds secrets in plain text, so it is dropped soon.
    setTimeout(() => {
      if (this.#resolved.get(key) === resolving) this.#resolved.delete(key)
    }, resolvedMs).unref()
    return resolving
  }

  /** Waits for the tenant's turn. Resolves to the sentence of the refusal when the tenant is over its limit. */
  async #turn(tenantId: string, turns: number, signal?: AbortSignal): Promise<string | undefined> {
    const most = (this.#options.limits?.of(tenantId) ?? defaultLimits).toolCallsPerMinute
    const waitMs = this.#turns.turnOf(tenantId, 60_000 / most, turns)
    if (waitMs === undefined) return overLimit('toolCallsPerMinute', most).sentence
    if (waitMs > 0) await sleep(waitMs, undefined, { ref: false, ...(signal ? { signal } : {}) }).catch(() => {})
    return undefined
  }

  /** Finds the tool of a name that was shortened with a hash. The tool's own name is not in it, so definitions have to be read. */
  async #find({ tenantId, mcp }: Caller, name: string): Promise<Meant | undefined> {
    const { database, config, keepMs } = this.#options
    const all = await servedNames(database, config, tenantId)
    const left = all.filter((one) => names.mayBeOf(name, one.name) && permitsServer(mcp, one.name))
    const found: Meant[] = []
    while (left.length > 0) {
      for (const served of await servedEntries(database, config, tenantId, takeBatch(left), keepMs)) {
        const entry = served.entry.name
        const fits = toolsOf(served, mcp).filter((tool) => names.nameOf(entry, tool.name) === name)
        found.push(...fits.map((tool) => ({ entry, tool: tool.name })))
      }
    }
    // Two tools with one hashed name are a deliberate collision, so neither is called.
    return found.length === 1 ? found[0] : undefined
  }

  #end(
    tenantId: string,
    entry: string | undefined,
    outcome: CallOutcome | 'limited',
    result: CallToolResult,
  ): CallToolResult {
    const { config, metrics } = this.#options
    // Tenants choose the names of their entries without limit, so these names must not become metric labels.
    const managed = entry !== undefined && config.find(tenantId, entry) ? entry : 'of_tenants'
    metrics.calls.inc({ entry: managed, outcome })
    return result
  }
}

const keyOf = (tenantId: string, entry: string): string => JSON.stringify([tenantId, entry])

/** Removes from the list the names that the next query reads together, and returns them. */
function takeBatch(left: { readonly name: string; readonly bytes: number }[]): readonly string[] {
  let bytes = 0
  let count = 0
  while (count < left.length && count < entriesAtOnce && (count === 0 || bytes + left[count]!.bytes <= bytesAtOnce)) {
    bytes += left[count]!.bytes
    count++
  }
  return left.splice(0, count).map(({ name }) => name)
}

const toolsOf = ({ entry, tools = [], accepted }: ServedEntry, mcp: McpPermissions | undefined): readonly FoundTool[] =>
  tools.filter(
    ({ name, digest }) => permitsTool(mcp, entry.name, name) && stateOf(entry, accepted, name, digest) === 'accepted',
  )

function shownAs(tool: FoundTool, name: string) {
  const text = JSON.stringify(tool)
  const { title, description, inputSchema, outputSchema, annotations } = text.includes(`"${inHeaders}":`)
    ? withoutHeaders(tool)
    : tool
  const shown = {
    name,
    inputSchema,
    ...(title === undefined ? {} : { title }),
    ...(description === undefined ? {} : { description }),
    ...(outputSchema === undefined ? {} : { outputSchema }),
    ...(annotations === undefined ? {} : { annotations }),
  }
  return { shown: shown as ListToolsResult['tools'][number], size: Buffer.byteLength(text) }
}

/** A schema uses this keyword for arguments that the server also wants as HTTP headers. This endpoint sends arguments in the body only. */
const inHeaders = 'x-mcp-header'

function withoutHeaders<T>(schema: T): T {
  if (Array.isArray(schema)) return schema.map(withoutHeaders) as T
  if (typeof schema !== 'object' || schema === null) return schema
  const fields = Object.entries(schema).filter(([key, inner]) => key !== inHeaders || typeof inner !== 'string')
  return Object.fromEntries(fields.map(([key, inner]) => [key, withoutHeaders(inner)])) as T
}

const cursorOf = (place: Place): string => Buffer.from(JSON.stringify(place)).toString('base64url')

function placeOf(cursor: string): Place {
  try {
    const [entry, index] = JSON.parse(Buffer.from(cursor, 'base64url').toString()) as [unknown, unknown]
    if (typeof entry === 'string' && Number.isInteger(index) && (index as number) >= 0) return [entry, index as number]
  } catch {
    // The error below covers this case.
  }
  throw invalidParams('The cursor does not belong to this list; list from the beginning.')
}

const noTool = (name: string): Error => invalidParams(`There is no tool '${name.slice(0, 100)}'.`)
const failed = (text: string): CallToolResult => ({ content: [{ type: 'text', text }], isError: true })
