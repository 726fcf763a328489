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

/** A page of tools: so many, or somewhat more than so many bytes. */
const toolsOfPage = 500
const bytesOfPage = 1024 * 1024
/** Entries that are read at once, and what they may take on disk together. */
const entriesAtOnce = 25
const bytesAtOnce = 512 * 1024
/** How long a list waits for servers that have never been asked. The others are in it, and these are in the next one. */
const patienceMs = 3_000
/** So many calls of a tenant pass at once; further ones wait, each for this long at most. As on runners. */
const pace = { atOnce: 20, longestMs: 30_000 } as const
/** What reads definitions takes as long as so many calls. */
const turnsOfReading = 10
/** So long a change of an entry may take to hold for calls. */
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
  /** The server does not take the token that it was sent. */
  dropToken(tenantId: string, entry: string): Promise<void>
}

/** A tool as its server names it. */
interface Meant {
  readonly entry: string
  readonly tool: string
}

/** Where a page of the list begins. */
type Place = readonly [entry: string, index: number]

const names = toolNames('')

/** The tools of a tenant's catalog: those of its active entries that are accepted, allowed and permitted. */
export class CatalogTools {
  readonly #options: CatalogToolsOptions
  readonly #turns = new Pace(pace)
  readonly #resolved = new Map<string, Promise<McpServer | string>>()

  constructor(options: CatalogToolsOptions) {
    this.#options = options
  }

  /** Those that a caller may use, as `<entry>__<tool>`; `only`: those of one entry, as its server names them. */
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

  /** Servers that were never asked are asked now; those that were asked long ago are asked in the background. */
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
   * Resources and prompts of one server, in its own words. Nobody reviews them and no list of tools allows them, so they are for entries and
   * keys that leave the server open.
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

  /** Where the server of an entry is and what it is sent, or why it cannot be asked. Calls of one second ask once. */
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
    // It has secrets in it.
    setTimeout(() => {
      if (this.#resolved.get(key) === resolving) this.#resolved.delete(key)
    }, resolvedMs).unref()
    return resolving
  }

  /** The sentence for whoever is over the limit. */
  async #turn(tenantId: string, turns: number, signal?: AbortSignal): Promise<string | undefined> {
    const most = (this.#options.limits?.of(tenantId) ?? defaultLimits).toolCallsPerMinute
    const waitMs = this.#turns.turnOf(tenantId, 60_000 / most, turns)
    if (waitMs === undefined) return overLimit('toolCallsPerMinute', most).sentence
    if (waitMs > 0) await sleep(waitMs, undefined, { ref: false, ...(signal ? { signal } : {}) }).catch(() => {})
    return undefined
  }

  /** What a name with a hash means. */
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
    // Two with one name are somebody's work: neither is called.
    return found.length === 1 ? found[0] : undefined
  }

  #end(
    tenantId: string,
    entry: string | undefined,
    outcome: CallOutcome | 'limited',
    result: CallToolResult,
  ): CallToolResult {
    const { config, metrics } = this.#options
    // Names that tenants give are no labels: there is no end of them.
    const managed = entry !== undefined && config.find(tenantId, entry) ? entry : 'of_tenants'
    metrics.calls.inc({ entry: managed, outcome })
    return result
  }
}

const keyOf = (tenantId: string, entry: string): string => JSON.stringify([tenantId, entry])

/** Takes the first names of a list away that are read together. */
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

/** The mark of arguments that a server wants in headers as well, for what stands before it. Here they are in the body alone. */
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
    // Told below.
  }
  throw invalidParams('The cursor does not belong to this list; list from the beginning.')
}

const noTool = (name: string): Error => invalidParams(`There is no tool '${name.slice(0, 100)}'.`)
const failed = (text: string): CallToolResult => ({ content: [{ type: 'text', text }], isError: true })
