import { isAlias, isMap, isScalar, isSeq, LineCounter, type Node, type Pair, parseDocument } from 'yaml'
import type { Origin } from './problems.ts'

/** A YAML file with the environment filled in, which still knows where each value came from. */
export interface RoleDocument {
  readonly value: unknown
  /** Everything wrong with the text itself, each with its line. */
  readonly problems: readonly string[]
  /** Origin of the value at a JSON pointer, or of the nearest thing around it. */
  readonly where: (pointer: string) => Origin
}

export type Environment = Readonly<Record<string, string | undefined>>

const reference = /\$\$\{|\$\{([^}]*)\}/g
const form = /^([A-Za-z_][A-Za-z0-9_]*(?:\|[A-Za-z_][A-Za-z0-9_]*)*)(?::-(.*))?$/s

/** Stands for a key that an empty substitution has dropped. */
const dropped = Symbol('dropped')

/**
 * Reads YAML and fills in `${A|B:-default}`: the first of A and B that is set and not empty, else the default. A key whose
 * whole value comes out empty is dropped, as if it were not in the file. `$${` is a literal `${`.
 */
export function readRoleDocument(text: string, file: string, env: Environment): RoleDocument {
  const lines = new LineCounter()
  // Keys given twice are found below: the parser names the line before the second one.
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false, uniqueKeys: false })
  const origins = new Map<string, Origin>()
  const at = (offset: number): string => `${file}:${lines.linePos(offset).line}`
  const problems = document.errors.map((error) => `not valid YAML: ${error.message} (${at(error.pos[0])})`)

  const fill = (source: string, offset: number, variables: string[]): string =>
    source.replace(reference, (whole, inside: string | undefined) => {
      if (inside === undefined) return '${'
      const match = form.exec(inside)
      if (!match) {
        problems.push(`${whole} is not of the form \${NAME}, \${NAME|OTHER} or \${NAME:-default} (${at(offset)})`)
        return ''
      }
      const names = match[1]!.split('|')
      variables.push(...names)
      return names.map((name) => env[name]).find((value) => value !== undefined && value !== '') ?? match[2] ?? ''
    })

  const read = (node: Node | null, pointer: string, offset: number): unknown => {
    const start = node?.range?.[0] ?? offset
    const variables: string[] = []
    origins.set(pointer, { at: at(offset), variables })
    if (isMap<Node, Node | null>(node)) {
      return Object.fromEntries(node.items.map((pair) => readPair(pair, pointer)).filter(([, v]) => v !== dropped))
    }
    if (isSeq<Node>(node)) {
      const items = node.items.map((item, i) => read(item, `${pointer}/${i}`, item.range?.[0] ?? start))
      return items.filter((v) => v !== dropped)
    }
    if (isAlias(node)) {
      problems.push(`anchors and aliases are not read in role files: write the value out (${at(start)})`)
      return dropped
    }
    if (!isScalar(node)) return null
    if (typeof node.value !== 'string') return node.value
    const filled = fill(node.value, start, variables)
    return filled === '' && node.value !== '' ? dropped : filled
  }

  const readPair = ({ key, value }: Pair<Node, Node | null>, parent: string): [string, unknown] => {
    const name = isScalar(key) ? String(key.value) : ''
    const offset = key.range?.[0] ?? 0
    const pointer = `${parent}/${escapePointer(name)}`
    if (origins.has(pointer)) problems.push(`'${name}' is in its map twice (${at(offset)})`)
    if (!isScalar(key)) problems.push(`a key must be plain text (${at(offset)})`)
    const found = read(value, pointer, offset)
    // `health:` with nothing after it is a plugin without settings; any other bare key is as if it were not there.
    if (found === null) return [name, parent === '/plugins' || parent === '/listeners' ? {} : dropped]
    return [name, found]
  }

  const where = (pointer: string): Origin => {
    if (pointer === '') return origins.get('') ?? { at: file, variables: [] }
    return origins.get(pointer) ?? where(pointer.slice(0, pointer.lastIndexOf('/')))
  }
  const value = problems.length > 0 ? {} : read(document.contents, '', 0)
  return { value: value === dropped ? {} : (value ?? {}), problems, where }
}

/** RFC 6901, as TypeBox writes paths. */
export const escapePointer = (name: string): string => name.replaceAll('~', '~0').replaceAll('/', '~1')
