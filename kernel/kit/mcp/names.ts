import { createHash } from 'node:crypto'

/** The longest name of a tool that model servers take. */
const maxChars = 64
const hashChars = 8
const hashed = new RegExp(`_[0-9a-f]{${hashChars}}$`)

/** Names of the tools of several servers: `<prefix><server>__<tool>`, where a model server takes that and it says one thing only. */
export interface ToolNames {
  /** The same for a server and its tool in every process, whatever others there are. `salt` makes another one. */
  nameOf(server: string, tool: string, salt?: number): string
  /** What a name says, unless it has a hash in the place of some of it: then only whoever knows all tools can tell. */
  partsOf(name: string): { readonly server: string; readonly tool: string } | undefined
  /** Whether a name with a hash can be of a tool of this server. */
  mayBeOf(name: string, server: string): boolean
}

export function toolNames(prefix: string): ToolNames {
  const plain = (server: string, tool: string): string | undefined => {
    if (server.includes('__') || server.endsWith('_') || !/^[A-Za-z0-9_-]+$/.test(tool)) return undefined
    const name = `${prefix}${server}__${tool}`
    return name.length <= maxChars && !hashed.test(name) ? name : undefined
  }
  const readable = (server: string, tool: string): string =>
    `${prefix}${server}__${tool}`.replaceAll(/[^A-Za-z0-9_-]/g, '_').slice(0, maxChars - hashChars - 1)
  return {
    nameOf: (server, tool, salt = 0) => {
      const simple = salt === 0 ? plain(server, tool) : undefined
      if (simple !== undefined) return simple
      const hash = createHash('sha256').update(`${server}\0${tool}\0${salt}`).digest('hex').slice(0, hashChars)
      return `${readable(server, tool)}_${hash}`
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
