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

/** The only place that reads the process environment. */
export const environment = (): Environment => process.env

const Instead = Settings(
  {
    whenSet: Type.Array(Type.String(), { minItems: 1, description: 'Names of environment variables.' }),
    file: Type.String({ minLength: 1, description: 'A role file, relative to this one.' }),
  },
  { description: 'Another role file, added to this one if all of these variables are set.' },
)

/** One entry under `plugins`. All settings except `use` belong to the plugin. */
export const Entry = Type.Object({
  use: Type.Optional(
    Type.String({
      minLength: 1,
      description:
        'plugins/x, runtimes/x or providers/x of this repository, ./path, or a package. Without it: plugins/<key>.',
    }),
  ),
})

/** A role file, without the settings of its plugins, which each plugin's own schema checks. */
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
  /** True: if the file names another file in `instead`, that file is loaded. Default: this file is loaded. */
  readonly instead?: boolean
  readonly only?: readonly string[]
}

/** Reads a role file, fills in the environment and imports its plugins, or `only` these: all take a second. Throws a BootError with every problem. */
export async function loadRole(file: string, options: LoadOptions): Promise<Role> {
  const path = resolve(file)
  const shown = relative('', path).startsWith('..') ? path : relative('', path)
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw new BootError(shown, [error.code === 'ENOENT' ? 'there is no such file' : `cannot be read: ${error.code}`])
  })
  const document = readRoleDocument(text, shown, options.env)
  if (document.problems.length > 0) throw new BootError(shown, document.problems)
  const other = options.instead ? insteadOf(document.value, options.env) : undefined
  // The other file's own `instead` is ignored, because two files could name each other.
  if (other !== undefined) return loadRole(resolve(dirname(path), other), { ...options, instead: false })
  const value = Value.Default(RoleFile, Value.Convert(RoleFile, document.value))
  const problems = problemsOf('', RoleFile, value, document.where)
  const entries: RoleEntry[] = []
  for (const [name, given] of Object.entries((value as Partial<Static<typeof RoleFile>>).plugins ?? {})) {
    // An entry that is no map was already reported.
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
  // Check also the settings of the plugins that were loaded, so that one error lists everything.
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
  // A malformed value is reported together with all other problems of the file.
  if (!Value.Check(Instead, instead)) return undefined
  return instead.whenSet.every((name) => env[name]) ? instead.file : undefined
}

/** A YAML file with the environment filled in, which knows the origin of each value. */
interface RoleDocument {
  readonly value: unknown
  /** Every problem of the text itself, with its line. */
  readonly problems: readonly string[]
  /** The origin of the value at a JSON pointer, or of the nearest value that encloses it. */
  readonly where: (pointer: string) => Origin
}

export type Environment = Readonly<Record<string, string | undefined>>

const reference = /\$\$\{|\$\{([^}]*)\}/g
const form = /^([A-Za-z_][A-Za-z0-9_]*(?:\|[A-Za-z_][A-Za-z0-9_]*)*)(?::-(.*))?$/s

/** Marks a key whose substitution came out empty. */
const dropped = Symbol('dropped')

/**
 * Reads YAML and fills in `${A|B:-default}`: the first of A and B that is set and not empty, else the default. A key whose
 * whole value comes out empty is dropped, as if it were not in the file. `$${` is a literal `${`.
 */
function readRoleDocument(text: string, file: string, env: Environment): RoleDocument {
  const lines = new LineCounter()
  // Duplicate keys are found below, because the parser reports the line before the second one.
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
    // `health:` without a value is a plugin without settings. Any other bare key is treated as absent.
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

/** RFC 6901, the form in which TypeBox writes paths. */
const escapePointer = (name: string): string => name.replaceAll('~', '~0').replaceAll('/', '~1')
