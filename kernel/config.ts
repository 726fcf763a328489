import { readFile } from 'node:fs/promises'
import { dirname, relative, resolve } from 'node:path'
import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { loadPlugin } from './config-modules.ts'
import { type Environment, escapePointer, readRoleDocument } from './config-yaml.ts'
import { ListenerSettings } from './http/listener-config.ts'
import { Duration, Settings } from './kit/settings.ts'
import { BootError, configProblems, type Entry as RoleEntry, type Role } from './plan.ts'
import { type Origin, problemsOf, shownAt } from './problems.ts'

export { loadPlugin, root } from './config-modules.ts'
export type { Environment } from './config-yaml.ts'

/** The one place where the process environment is read. */
export const environment = (): Environment => process.env

const Instead = Settings(
  {
    whenSet: Type.Array(Type.String(), { minItems: 1, description: 'Names of environment variables.' }),
    file: Type.String({ minLength: 1, description: 'A role file, relative to this one.' }),
  },
  { description: 'Another file that a process is made of where all of these variables are set.' },
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
  shutdownGrace: Duration('25s', 'How long stopping may take before the process exits anyway.'),
  instead: Type.Optional(Instead),
  plugins: Type.Record(Type.String(), Entry, { description: 'What this role is made of.' }),
})

export interface LoadOptions {
  readonly env: Environment
  /** Where the file says `instead`, the other file is loaded; unless given, this one is. */
  readonly instead?: boolean
}

/** Reads a role file, fills in the environment and imports its plugins. Throws a BootError with every problem found. */
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
  if (other !== undefined) return loadRole(resolve(dirname(path), other), { env: options.env })
  const value = Value.Default(RoleFile, Value.Convert(RoleFile, document.value))
  const problems = problemsOf('', RoleFile, value, document.where)
  const plugins = (value as Partial<Static<typeof RoleFile>>).plugins ?? {}
  const entries: RoleEntry[] = []
  for (const [name, given] of Object.entries(plugins)) {
    // It was already reported that this is no map.
    if (typeof given !== 'object' || given === null) continue
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
  const { role: name, log, shutdownGrace, ...checked } = Value.Decode(RoleFile, value)
  const listeners = Object.entries(checked.listeners).map(([listener, { port, ...settings }]) => {
    const origin = document.where(`/listeners/${escapePointer(listener)}/port`)
    return [listener, { ...settings, port, origin }] as const
  })
  return { name, listeners: Object.fromEntries(listeners), plugins: entries, shutdownGrace, ...(log ? { log } : {}) }
}

function insteadOf(value: unknown, env: Environment): string | undefined {
  const instead = (value as { instead?: unknown }).instead
  // A wrong one is reported with everything else that is wrong in the file.
  if (!Value.Check(Instead, instead)) return undefined
  return instead.whenSet.every((name) => env[name]) ? instead.file : undefined
}
