import type { LanguageModelV4FunctionTool } from '@ai-sdk/provider'
import MiniSearch from 'minisearch'
import { bounded, failed, type ToolOutcome } from './outcome.ts'

export const searchTools = 'search_tools'
export const callTool = 'call_tool'

const usualHits = 5
const maxHits = 20
/** Names offered in the place of one that does not exist. */
const maxSuggestions = 3

/** Tools that a model is not shown: it finds them with `search_tools` and uses them with `call_tool`. */
export interface Catalogue {
  readonly specs: readonly LanguageModelV4FunctionTool[]
  search(input: Readonly<Record<string, unknown>>): ToolOutcome
  /** What to answer to a call of a tool that does not exist. */
  unknown(name: string): ToolOutcome
}

/** `about`: where the tools come from, for the model. */
export function createCatalogue(tools: readonly LanguageModelV4FunctionTool[], about: string): Catalogue {
  const byName = new Map(tools.map((tool) => [tool.name, tool]))
  // Made when it is first asked: many runs need no tool.
  let index: MiniSearch | undefined
  const find = (query: string, limit: number): LanguageModelV4FunctionTool[] => {
    index ??= indexOf(tools)
    return index
      .search(query)
      .slice(0, limit)
      .flatMap(({ id }) => byName.get(String(id)) ?? [])
  }
  return {
    specs: [searchSpec(tools.length, about), callSpec],
    search({ query, limit }) {
      if (typeof query !== 'string' || query.trim() === '') return failed(`'query' has to be text.`)
      const found = find(
        query,
        typeof limit === 'number' && limit >= 1 ? Math.min(Math.floor(limit), maxHits) : usualHits,
      )
      if (found.length === 0)
        return { ok: true, content: `No tool fits. There are ${tools.length}: ${about}. Try other words.` }
      const shown = found.map(({ name, description, inputSchema }) => ({ name, description, inputSchema }))
      return { ok: true, content: bounded(JSON.stringify(shown)) }
    },
    unknown(name) {
      const near = find(name, maxSuggestions).map((tool) => `'${tool.name}'`)
      const hint = near.length > 0 ? `Did you mean ${near.join(' or ')}?` : `Look for one with ${searchTools}.`
      return failed(`There is no tool '${name}'. ${hint}`)
    },
  }
}

/** BM25 over names and descriptions; words of a name count more, beginnings and slips of the pen a little. */
function indexOf(tools: readonly LanguageModelV4FunctionTool[]): MiniSearch {
  const index = new MiniSearch({
    fields: ['name', 'description'],
    idField: 'name',
    tokenize: wordsOf,
    searchOptions: { boost: { name: 2 }, prefix: true, fuzzy: 0.2 },
  })
  index.addAll(tools.map(({ name, description = '' }) => ({ name, description })))
  return index
}

/** `listPullRequests` and `list_pull_requests` are three words. */
const wordsOf = (text: string): string[] =>
  text
    .replaceAll(/(?<=[\p{Ll}\p{N}])(?=\p{Lu})/gu, ' ')
    .split(/[^\p{L}\p{N}]+/u)
    .filter((word) => word !== '')

const searchSpec = (count: number, about: string): LanguageModelV4FunctionTool => ({
  type: 'function',
  name: searchTools,
  description: `Searches ${count} more tools (${about}) that are not listed here. Answers with names, descriptions and input schemas; use what you find with ${callTool}.`,
  inputSchema: {
    type: 'object',
    properties: {
      query: { type: 'string', description: 'A few words about what the tool should do.' },
      limit: { type: 'integer', minimum: 1, maximum: maxHits, description: `${usualHits} unless given.` },
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
      arguments: { type: 'object', description: "What the tool's input schema asks for." },
    },
    required: ['name', 'arguments'],
    additionalProperties: false,
  },
}
