import { readFile } from 'node:fs/promises'
import { dirname, relative, resolve } from 'node:path'
import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { isAlias, isMap, isScalar, isSeq, LineCounter, type Node, type Pair, parseDocument } from 'yaml'
import { loadPlugin } from './config-modules.ts'
import { ListenerSettings } from './http/listener-config.ts'
import { Duration, Settings } from './kit/settings.ts'
import { tlsProblem } from './kit/tls.ts'
import { BootError, configProblems } from './plan.ts'
import type { Entry as RoleEntry, Role } from './plugin.ts'
import { type Origin, problemsOf, shownAt } from './problems.ts'

export { loadPlugin, root } from './config-modules.ts'

/** The one place where the process environment is read. */
export const environment = (): Environment => process.env

const Instead = Settings(
  {
    whenSet: Type.Array(Type.String(), { minItems: 1, description: 'Names of environment variables.' }),
    file: Type.String({ minLength: 1, description: 'A role file, relative to this one.' }),
  },
  { description: 'Another role file, added to this one if all of these variables are set.' },
)

/** One entry under `plugins`; the settings beside `use` belong to the plugin. */
export const Entry = Type.Object({
  use: Type.Optional(
    Type.String({
      minLength: 1,
      description:
        'plugins/x, runtimes/x or providers/x of this repository, ./path, or a package. Without it: plugins/<key>.',
    }),
  ),
})

/** A role file, without the settings of its plugins: those are checked by each plugin's own schema. */
export const RoleFile = Settings({
  role: Type.String({ pattern: '^[a-z][a-z0-9-]*$', expects: 'a name of lower-case letters, digits and hyphens' }),
  listeners: Type.Record(Type.String(), ListenerSettings, { default: {}, description: 'Named HTTP listeners.' }),
  log: Type.Optional(
    Settings({
      level: Type.Union(
        ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'].map((level) => Type.Literal(level)),
        { default: 'info' },
      ),
      requests: Type.Boolean({ default: false, description: 'One log line for each answered request.' }),
    }),
  ),
  preload: Type.Boolean({ default: false, description: 'Load libraries before the role is ready, not at first use.' }),
  shutdownGrace: Duration('25s', 'Time to stop; after that the process exits anyway.'),
  instead: Type.Optional(Instead),
  plugins: Type.Record(Type.String(), Entry, { description: 'The plugins of this role.' }),
})

interface LoadOptions {
  readonly env: Environment
  /** Where the file says `instead`, the other file is loaded; by default, this one is. */
  readonly instead?: boolean
  readonly only?: readonly string[]
}

/** Reads a role file, fills in the environment and imports its plugins, or `only` those of these entries: all take a second. Throws a BootError with every problem found. */
export async function loadRole(file: string, options: LoadOptions): Promise<Role> {
  const path = resolve(file)
  const shown = relative('', path).startsWith('..') ? path : relative('', path)
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw new BootError(shown, [error.code === 'ENOENT' ? 'there is no such file' : `cannot be read: ${error.code}`])
  })
  const document = readRoleDocument(text, shown, options.env)
  if (document.problems.length > 0) throw new BootError(shown, document.problems)
  const other = options.instead ? insteadOf(document.value, options.env) : undefined
  // The other file's own `instead` is not followed: two files could name each other.
  if (other !== undefined) return loadRole(resolve(dirname(path), other), { ...options, instead: false })
  const value = Value.Default(RoleFile, Value.Convert(RoleFile, document.value))
  const problems = problemsOf('', RoleFile, value, document.where)
  const entries: RoleEntry[] = []
  for (const [name, given] of Object.entries((value as Partial<Static<typeof RoleFile>>).plugins ?? {})) {
    // It was already reported that this is no map.
    if (typeof given !== 'object' || given === null || options.only?.includes(name) === false) continue
    const { use, ...config } = given
    const where = (pointer: string): Origin => document.where(`/plugins/${escapePointer(name)}${pointer}`)
    try {
      const plugin = await loadPlugin(String(use ?? `plugins/${name}`), path)
      entries.push({ name, plugin, config, where })
    } catch (error) {
      problems.push(`${name}: ${(error as Error).message}${shownAt(where(''))}`)
    }
  }
  // The settings of what could be loaded are wrong or right regardless of the rest: say everything in one go.
  if (problems.length > 0) throw new BootError(shown, [...problems, ...entries.flatMap(configProblems)])
  const { role: name, log, preload, shutdownGrace, ...checked } = Value.Decode(RoleFile, value)
  const listeners = Object.entries(checked.listeners).map(([listener, { port, ...settings }]) => {
    const origin = document.where(`/listeners/${escapePointer(listener)}/port`)
    const why = settings.tls && tlsProblem(settings.tls)
    if (why !== undefined) problems.push(`listeners.${listener}.tls ${why}${shownAt(origin)}`)
    return [listener, { ...settings, port, origin }] as const
  })
  if (problems.length > 0) throw new BootError(shown, problems)
  const settings = { preload, shutdownGrace, ...(log ? { log } : {}) }
  return { name, listeners: Object.fromEntries(listeners), plugins: entries, ...settings }
}

function insteadOf(value: unknown, env: Environment): string | undefined {
  const instead = (value as { instead?: unknown }).instead
  // A wrong one is reported with everything else that is wrong in the file.
  if (!Value.Check(Instead, instead)) return undefined
  return instead.whenSet.every((name) => env[name]) ? instead.file : undefined
}

/** A YAML file with the environment filled in, which still knows where each value came from. */
interface RoleDocument {
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
function readRoleDocument(text: string, file: string, env: Environment): RoleDocument {
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
const escapePointer = (name: string): string => name.replaceAll('~', '~0').replaceAll('/', '~1')
