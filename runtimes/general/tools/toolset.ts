import type { LanguageModelV4FunctionTool } from '@ai-sdk/provider'
import { approvalTool } from '#contracts/approvals'
import { toolNames } from '#kit/mcp'
import type { Connection, Tool } from './connection.ts'
import { bounded, failed, maxResultChars, type ToolOutcome, unknownTool } from './outcome.ts'
import { createSearch } from './search.ts'

interface Call {
  readonly name: string
  /** Undefined: the arguments are not a JSON object. */
  readonly input: Readonly<Record<string, unknown>> | undefined
}

/** The tools of one run: those of the session, and those of the external MCP servers of its profile. */
export interface ToolSet {
  /** The tools that the model sees. A new array when they change. */
  readonly specs: LanguageModelV4FunctionTool[]
  /** The intended call: the inner call of `call_tool`, otherwise the call itself. */
  target(call: Call): Call
  /** Never rejects for a failure of the tool itself: the model gets the failure and may continue. */
  call(name: string, input: Readonly<Record<string, unknown>>, callId: string): Promise<ToolOutcome>
  /** Loads the tool lists that servers have changed. Undefined when no list has changed. */
  refresh(): Promise<void> | undefined
  close(): Promise<void>
}

export interface ExternalServer {
  readonly name: string
  readonly connection: Connection
}

interface Entry {
  readonly connection: Connection
  /** The tool's name on its server. */
  readonly tool: string
  readonly spec: LanguageModelV4FunctionTool
}

/**
 * With more than `maxSchemas` tools, those of external servers are shown through a catalogue. The session's own tools stay listed as long as they
 * fit, because the profile names each of them, whereas a server offers all of its tools. `asks` says which external tools may be called only after
 * the session's endpoint has allowed it.
 */
export function createToolSet(
  session: Connection | undefined,
  servers: readonly ExternalServer[],
  maxSchemas: number,
  asks: (name: string) => boolean = () => false,
): ToolSet {
  const listed = () => {
    const kept = withRoom(servers)
    const entries = entriesOf(session, kept)
    return { entries, view: viewOf(entries, session, kept, maxSchemas) }
  }
  let { entries, view } = listed()
  const all = session ? [session, ...servers.map(({ connection }) => connection)] : servers.map((s) => s.connection)
  return {
    get specs() {
      return view.specs
    },
    target(call) {
      const inner = view.catalogue && call.name === callTool ? innerCall(call) : undefined
      return inner ?? call
    },
    async call(name, input, callId) {
      const { catalogue } = view
      if (catalogue && name === searchTools) return catalogue.search(input)
      if (catalogue && name === callTool) return failed(`'name' has to name a tool that ${searchTools} found.`)
      const entry = entries.get(name)
      if (entry && entry.connection !== session && asks(name)) {
        // The runner itself checks calls of the session's own tools. It checks calls of external tools only when asked.
        const asked = { name, arguments: input }
        const allowed = session ? await session.call(approvalTool, asked, callId, name) : failed(notAsked(name))
        if (!allowed.ok) return allowed
      }
      if (entry) return entry.connection.call(entry.tool, input, callId, name)
      return catalogue ? catalogue.unknown(name) : unknownTool(name)
    },
    refresh() {
      const changed = servers.filter(({ connection }) => connection.changed)
      if (changed.length === 0) return undefined
      return Promise.all(changed.map(({ connection }) => connection.refresh())).then(() => {
        ;({ entries, view } = listed())
      })
    },
    async close() {
      await Promise.allSettled(all.map((connection) => connection.close()))
    },
  }
}

const notAsked = (name: string): string => `'${name}' needs an approval, and nobody can be asked here.`

/** The most tools of external servers. All of them are named in one step, and searched. */
export const mostTools = 5_000

/** Those servers, in their order, whose tools a run has room for. */
export function withRoom(servers: readonly ExternalServer[]): ExternalServer[] {
  let left = mostTools
  return servers.filter(({ connection: { tools } }) => {
    if (tools.length > left) return false
    left -= tools.length
    return true
  })
}

function entriesOf(session: Connection | undefined, servers: readonly ExternalServer[]): Map<string, Entry> {
  const entries = new Map<string, Entry>()
  const specOf = (name: string, tool: Tool): LanguageModelV4FunctionTool => ({ type: 'function', ...tool, name })
  if (session) {
    for (const tool of session.tools) {
      entries.set(tool.name, { connection: session, tool: tool.name, spec: specOf(tool.name, tool) })
    }
  }
  const nameOf = createNames([...entries.keys(), searchTools, callTool])
  for (const { name: server, connection } of servers) {
    for (const tool of connection.tools) {
      const name = nameOf(server, tool.name)
      entries.set(name, { connection, tool: tool.name, spec: specOf(name, tool) })
    }
  }
  return entries
}

interface View {
  readonly specs: LanguageModelV4FunctionTool[]
  readonly catalogue?: Catalogue
}

function viewOf(
  entries: ReadonlyMap<string, Entry>,
  session: Connection | undefined,
  servers: readonly ExternalServer[],
  maxSchemas: number,
): View {
  const all = [...entries.values()]
  if (all.length <= maxSchemas) return { specs: all.map(({ spec }) => spec) }
  const own = all.filter(({ connection }) => connection === session)
  // The two tools of the catalogue count too.
  const direct = own.length + 2 <= maxSchemas ? own : []
  const rest = direct.length === 0 ? all : all.filter(({ connection }) => connection !== session)
  const sources = [
    ...(direct.length === own.length ? [] : [`${own.length} of this service`]),
    ...servers.map(({ name, connection }) => `${connection.tools.length} of ${name}`),
  ]
  const catalogue = createCatalogue(
    rest.map(({ spec }) => spec),
    sources.join(', '),
  )
  return { specs: [...direct.map(({ spec }) => spec), ...catalogue.specs], catalogue }
}

/** The call inside a `call_tool`. Undefined when it names no tool; the outer call gets the answer then. */
function innerCall({ input }: Call): Call | undefined {
  const { name, arguments: given = {} } = input ?? {}
  if (typeof name !== 'string' || name === callTool) return undefined
  return { name, input: objectOf(given) }
}

/** Returns arguments as an object, because models often send JSON as text. */
function objectOf(given: unknown): Readonly<Record<string, unknown>> | undefined {
  let value = given
  if (typeof given === 'string') {
    try {
      value = JSON.parse(given)
    } catch {
      return undefined
    }
  }
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined
}

const names = toolNames('mcp__')

/** Names for the tools of external servers: unique, different from those in `taken`, and the same in every run. */
export function createNames(taken: Iterable<string>): (server: string, tool: string) => string {
  const used = new Set(taken)
  return (server, tool) => {
    let name = names.nameOf(server, tool)
    // Two hashes may be equal, and a session tool may already have the name.
    for (let salt = 1; used.has(name); salt++) name = names.nameOf(server, tool, salt)
    used.add(name)
    return name
  }
}

const searchTools = 'search_tools'
const callTool = 'call_tool'

const usualHits = 5
const maxHits = 20
/** The most similar names that are suggested for a tool that does not exist. */
const maxSuggestions = 3

/** Tools that are not listed for the model. It finds them with `search_tools` and calls them with `call_tool`. */
interface Catalogue {
  readonly specs: readonly LanguageModelV4FunctionTool[]
  search(input: Readonly<Record<string, unknown>>): Promise<ToolOutcome>
  /** The answer to a call of a tool that does not exist. */
  unknown(name: string): Promise<ToolOutcome>
}

/** `about` tells the model where the tools come from. */
function createCatalogue(tools: readonly LanguageModelV4FunctionTool[], about: string): Catalogue {
  const find = createSearch(tools)
  return {
    specs: [searchSpec(tools.length, about), callSpec],
    async search({ query, limit }) {
      if (typeof query !== 'string' || query.trim() === '') return failed(`'query' has to be text.`)
      const found = await find(
        query,
        typeof limit === 'number' && limit >= 1 ? Math.min(Math.floor(limit), maxHits) : usualHits,
      )
      if (found.length === 0)
        return { ok: true, content: `No tool matches. There are ${tools.length}: ${about}. Try other words.` }
      return { ok: true, content: shownOf(found) }
    },
    async unknown(name) {
      const near = (await find(name, maxSuggestions)).map((tool) => `'${tool.name}'`)
      const hint = near.length > 0 ? `Did you mean ${near.join(' or ')}?` : `Look for one with ${searchTools}.`
      return failed(`There is no tool '${name}'. ${hint}`)
    },
  }
}

/** As text, made of no more tools than it has room for: a schema may be long. */
function shownOf(found: readonly LanguageModelV4FunctionTool[]): string {
  const shown: string[] = []
  for (let chars = 0; shown.length < found.length && chars <= maxResultChars; chars += shown.at(-1)!.length) {
    const { name, description, inputSchema } = found[shown.length]!
    shown.push(JSON.stringify({ name, description, inputSchema }))
  }
  return bounded(`[${shown.join(',')}]`)
}

const searchSpec = (count: number, about: string): LanguageModelV4FunctionTool => ({
  type: 'function',
  name: searchTools,
  description: `Searches ${count} more tools (${about}) that are not listed here. Answers with names, descriptions and input schemas; use what you find with ${callTool}.`,
  inputSchema: {
    type: 'object',
    properties: {
      query: { type: 'string', description: 'A few words about what the tool should do.' },
      limit: { type: 'integer', minimum: 1, maximum: maxHits, description: `Number of hits; ${usualHits} by default.` },
    },
    required: ['query'],
    additionalProperties: false,
  },
})

const callSpec: LanguageModelV4FunctionTool = {
  type: 'function',
  name: callTool,
  description: `Calls a tool that ${searchTools} found.`,
  inputSchema: {
    type: 'object',
    properties: {
      name: { type: 'string', description: `The tool's name as ${searchTools} gave it.` },
      arguments: { type: 'object', description: "The arguments, as in the tool's input schema." },
    },
    required: ['name', 'arguments'],
    additionalProperties: false,
  },
}
