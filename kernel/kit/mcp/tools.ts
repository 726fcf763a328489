import { createHash, hash } from 'node:crypto'
import type { Client, Tool } from '@modelcontextprotocol/client'
import type { McpServer } from '#contracts/mcp-servers'
import { tooLarge } from './failures.ts'

/** The run's own deadline ends a call. The library's default of 60 s would end long tools early. */
export const noTimeout = 2_147_483_647

/** The parts of a tool's definition that a model may read. */
export type McpTool = Pick<Tool, 'name' | 'title' | 'description' | 'inputSchema' | 'outputSchema' | 'annotations'>

/** The most pages of a list. A server that never stops paging is broken. */
const maxPages = 50
/** The most tools of one server, because each run keeps them in memory. */
const maxTools = 2_000

/** False for unusable tool names: empty, longer than lists of allowed tools accept, or with characters that are not text. */
const isName = (name: string): boolean =>
  name !== '' && name.length <= 200 && !name.includes('\0') && name.isWellFormed()

/**
 * Lists the tools of a server; of two with the same name, the first. It leaves out tools with an invalid name, or with header marks that violate
 * the protocol. Rejects with the original error, and with `tooLarge` when all pages together are too large.
 */
export async function listTools(
  { client, maxListBytes }: { readonly client: Client; readonly maxListBytes: number },
  signal: AbortSignal,
): Promise<readonly McpTool[]> {
  const tools = new Map<string, McpTool>()
  let cursor: string | undefined
  let bytes = 0
  const isModern = client.getProtocolEra() === 'modern'
  for (let page = 0; page < maxPages; page++) {
    const params = cursor === undefined ? {} : { cursor }
    const request = { method: 'tools/list' as const, params }
    const listed = await client.request(request, { signal, timeout: noTimeout })
    bytes += Buffer.byteLength(JSON.stringify(listed.tools))
    if (bytes > maxListBytes) throw new Error(tooLarge)
    for (const tool of listed.tools) {
      if (!isName(tool.name) || tools.has(tool.name)) continue
      if (isModern && !hasPlainHeaders(tool.inputSchema)) continue
      if (tools.size === maxTools) return [...tools.values()]
      tools.set(tool.name, tool)
    }
    // A page that leads to itself would be requested again and again.
    if (listed.nextCursor === undefined || listed.nextCursor === cursor) break
    cursor = listed.nextCursor
  }
  return [...tools.values()]
}

/** The mark of an argument that its server needs in a header too, and the types that such an argument may have. */
const inHeader = 'x-mcp-header'
const headerTypes: ReadonlySet<unknown> = new Set(['string', 'integer', 'boolean'])
/** Keys whose values are not schemas. */
const data: ReadonlySet<string> = new Set(['const', 'default', 'enum', 'examples'])

/**
 * True unless a mark is no valid header name, appears twice, or stands where no argument can be found. The protocol requires that such tools are
 * left out.
 */
function hasPlainHeaders(schema: unknown): boolean {
  const names = new Set<string>()
  const isFine = (node: unknown, reached: boolean, top: boolean): boolean => {
    if (Array.isArray(node)) return node.every((one) => isFine(one, false, false))
    if (typeof node !== 'object' || node === null) return true
    const { [inHeader]: name, type } = node as { [inHeader]?: unknown; type?: unknown }
    if (inHeader in node) {
      const isToken = typeof name === 'string' && /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)
      if (!isToken || !reached || top || !headerTypes.has(type) || names.has(name.toLowerCase())) return false
      names.add(name.toLowerCase())
    }
    return Object.entries(node).every(([key, inner]) =>
      key === 'properties'
        ? Object.values((inner ?? {}) as object).every((one) => isFine(one, reached, false))
        : data.has(key) || isFine(inner, false, false),
    )
  }
  return isFine(schema, true, true)
}

/** SHA-256 of a tool's definition in hex, independent of the order of its fields. */
export function digestOf({ name, title, description, inputSchema, outputSchema, annotations }: McpTool): string {
  const definition = { name, title, description, inputSchema, outputSchema, annotations }
  return createHash('sha256')
    .update(JSON.stringify(ordered(definition)))
    .digest('hex')
}

/** The value with the fields of all its objects in one order. */
function ordered(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(ordered)
  if (typeof value !== 'object' || value === null) return value
  const fields = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1))
  return Object.fromEntries(fields.map(([key, inner]) => [key, ordered(inner)]))
}

/** Those of the listed tools that a run may see and call. */
export function permittedTools(listed: readonly McpTool[], permits: McpServer['tools']): readonly McpTool[] {
  if (!permits) return listed
  const digests = new Map(permits.map(({ name, digest }) => [name, digest]))
  return listed.filter((tool) => {
    if (!digests.has(tool.name)) return false
    const digest = digests.get(tool.name)
    return digest === undefined || digest === digestOf(tool)
  })
}

/** The most characters of a tool's name that model servers accept. */
const maxChars = 64
const hashChars = 8
const hashed = new RegExp(`_[0-9a-f]{${hashChars}}$`)

/** Names for the tools of several servers: `<prefix><server>__<tool>`, if a model server accepts that name and it is unambiguous. */
export interface ToolNames {
  /** The same name for a server and its tool in every process, independent of other tools. `salt` gives a different name. */
  nameOf(server: string, tool: string, salt?: number): string
  /** The tool of a name. Undefined when a part of the name is a hash: finding the tool then requires all tools. */
  partsOf(name: string): { readonly server: string; readonly tool: string } | undefined
  /** Whether a name with a hash can belong to a tool of this server. */
  mayBeOf(name: string, server: string): boolean
}

export function toolNames(prefix: string): ToolNames {
  const plain = (server: string, tool: string): string | undefined => {
    if (server.includes('__') || server.endsWith('_') || !/^[A-Za-z0-9_-]+$/.test(tool)) return undefined
    const name = `${prefix}${server}__${tool}`
    return name.length <= maxChars && !hashed.test(name) ? name : undefined
  }
  const readable = (server: string, tool: string): string =>
    `${prefix}${server}__${tool}`.slice(0, maxChars - hashChars - 1).replaceAll(/[^A-Za-z0-9_-]/g, '_')
  return {
    nameOf: (server, tool, salt = 0) => {
      const simple = salt === 0 ? plain(server, tool) : undefined
      if (simple !== undefined) return simple
      return `${readable(server, tool)}_${hash('sha256', `${server}\0${tool}\0${salt}`).slice(0, hashChars)}`
    },
    partsOf(name) {
      if (!name.startsWith(prefix) || hashed.test(name)) return undefined
      const at = name.indexOf('__', prefix.length)
      if (at <= prefix.length) return undefined
      const parts = { server: name.slice(prefix.length, at), tool: name.slice(at + 2) }
      return plain(parts.server, parts.tool) === name ? parts : undefined
    },
    mayBeOf: (name, server) => hashed.test(name) && name.startsWith(readable(server, '')),
  }
}
