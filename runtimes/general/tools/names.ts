import { createHash } from 'node:crypto'

/** What model servers take as the name of a tool. */
const maxChars = 64
const prefix = 'mcp__'
const hashChars = 8

/** Names for the tools of external servers: never two the same, never one of `taken`, and the same in every run. */
export function createNames(taken: Iterable<string>): (server: string, tool: string) => string {
  const used = new Set(taken)
  return (server, tool) => {
    const plain = plainName(server, tool)
    let name = plain ?? hashedName(server, tool, 0)
    // Two servers that try hard may still meet: `a__b` with a tool `c` is `a` with a tool `b__c`.
    for (let salt = 1; used.has(name); salt++) name = hashedName(server, tool, salt)
    used.add(name)
    return name
  }
}

/** `mcp__<server>__<tool>`, when that says which is which in letters that a model server takes. */
function plainName(server: string, tool: string): string | undefined {
  if (server.includes('__') || server.endsWith('_') || !/^[A-Za-z0-9_-]+$/.test(tool)) return undefined
  const name = `${prefix}${server}__${tool}`
  return name.length <= maxChars ? name : undefined
}

function hashedName(server: string, tool: string, salt: number): string {
  const hash = createHash('sha256').update(`${server}\0${tool}\0${salt}`).digest('hex').slice(0, hashChars)
  const readable = `${prefix}${server}__${tool}`.replaceAll(/[^A-Za-z0-9_-]/g, '_')
  return `${readable.slice(0, maxChars - hashChars - 1)}_${hash}`
}
