import type { TSchema } from '@sinclair/typebox'
import { Value, type ValueError } from '@sinclair/typebox/value'
import { type Plugin, pluginApi } from './plugin.ts'

/** One use of a plugin. `name` is the key in the role file, so one plugin can be used twice (two signing families). */
export interface Entry {
  readonly name: string
  readonly plugin: Plugin
  readonly config?: unknown
  /** Where a setting came from: `path` is a JSON pointer into `config`, '' for the entry. Absent when built in code. */
  readonly where?: (path: string) => Origin
}

export interface Origin {
  /** `config/gateway.yaml:12`. */
  readonly at: string
  /** Names of the environment variables that may fill the setting. */
  readonly variables: readonly string[]
}

export interface ListenerConfig {
  readonly host: string
  /** Undefined when the role declares the listener and leaves it off. */
  readonly port: number | undefined
  /** Where the port came from, so that a port that is taken can say what changes it. */
  readonly origin?: Origin
}

/** What a config file resolves to. A role is data: which plugins, with which config, on which ports. */
export interface Role {
  readonly name: string
  readonly listeners: Readonly<Record<string, ListenerConfig>>
  readonly plugins: readonly Entry[]
  readonly log?: { readonly level?: string; readonly requests?: boolean }
  /** How long a process gives this role to stop before it exits anyway; milliseconds. */
  readonly shutdownGrace?: number
}

export class BootError extends Error {
  readonly problems: readonly string[]
  constructor(role: string, problems: readonly string[], cause?: unknown) {
    super(`role '${role}' cannot boot:\n${problems.map((p) => `  - ${p}`).join('\n')}`, { cause })
    this.name = 'BootError'
    this.problems = problems
  }
}

/** Coerces strings from the environment, fills defaults, and leaves anything wrong for `plan` to report. */
export function settings(entry: Entry): unknown {
  const { plugin, config } = entry
  return Value.Default(plugin.config, Value.Convert(plugin.config, structuredClone(config ?? {})))
}

/** What is wrong with a plugin's settings, one sentence each, in words an operator can act on; never a value, it may be a secret. */
export function configProblems(entry: Entry): string[] {
  return problemsOf(`${entry.name}: config.`, entry.plugin.config, settings(entry), entry.where)
}

/** The same for any schema; `label` goes before the dotted path. */
export function problemsOf(label: string, schema: TSchema, value: unknown, where?: (path: string) => Origin): string[] {
  const seen = new Set<string>()
  const problems: string[] = []
  for (const error of Value.Errors(schema, value)) {
    // One sentence per setting: a missing property is reported by TypeBox both as absent and as of the wrong type.
    if (seen.has(error.path)) continue
    seen.add(error.path)
    const origin = where?.(error.path)
    const set = origin && origin.variables.length > 0 ? `; set ${origin.variables.join(' or ')}` : ''
    problems.push(`${label}${dotted(error.path)} ${sentence(error)}${set}${shownAt(origin)}`)
  }
  return problems
}

/** A JSON pointer as people write it; names of settings may hold a slash, e.g. of a model. */
const dotted = (pointer: string): string =>
  pointer.slice(1).replaceAll('/', '.').replaceAll('~1', '/').replaceAll('~0', '~')

export const shownAt = (origin: Origin | undefined): string => (origin ? ` (${origin.at})` : '')

function sentence({ message, schema }: ValueError): string {
  if (message === 'Unexpected property') {
    return `is not a setting here; known: ${Object.keys((schema as { properties?: object }).properties ?? {}).join(', ') || 'none'}`
  }
  if (message === 'Expected required property') return 'is required'
  // Set by the types of settings.ts: a pattern means nothing to an operator.
  if (typeof schema['expects'] === 'string') return `expects ${schema['expects']}`
  const choices = (schema['anyOf'] as readonly TSchema[] | undefined)?.map((s) => s['const'] as unknown)
  if (choices?.every((c) => c !== undefined)) return `expects one of ${choices.join(', ')}`
  return message.replace(/^Expected/, 'expects')
}

/** Pure: checks the whole role and returns its entries in start order, or throws with every problem found. */
export function plan(role: Role): Entry[] {
  const problems: string[] = []
  const makers = new Map<string, Entry[]>()
  const names = new Set<string>()
  for (const entry of role.plugins) {
    const { name, plugin } = entry
    const here = shownAt(entry.where?.(''))
    if (names.has(name)) problems.push(`${name}: listed twice${here}`)
    names.add(name)
    if (plugin.api !== pluginApi) {
      problems.push(
        `${name}: speaks plugin api ${String(plugin.api)}, this kernel speaks ${pluginApi}; update the plugin${here}`,
      )
      continue
    }
    problems.push(...configProblems(entry))
    for (const c of Object.values(plugin.provides)) {
      const others = makers.get(c.id) ?? []
      if (others.length > 0 && c.mode === 'one') {
        problems.push(`${name}: '${c.id}' is already provided by ${others[0]!.name}; remove one of them${here}`)
      }
      makers.set(c.id, [...others, entry])
    }
  }
  const order: Entry[] = []
  const visit = (entry: Entry, path: readonly Entry[]): void => {
    if (path.includes(entry)) {
      problems.push(`cycle: ${[...path.slice(path.indexOf(entry)), entry].map((x) => x.name).join(' -> ')}`)
      return
    }
    if (order.includes(entry)) return
    for (const c of Object.values(entry.plugin.requires)) {
      const from = makers.get(c.id) ?? []
      if (from.length === 0 && c.mode === 'one') {
        problems.push(
          `${entry.name}: nothing in this role provides '${c.id}'; add a plugin that does${shownAt(entry.where?.(''))}`,
        )
      }
      for (const maker of from) visit(maker, [...path, entry])
    }
    order.push(entry)
  }
  for (const entry of role.plugins) if (entry.plugin.api === pluginApi) visit(entry, [])
  if (problems.length > 0) throw new BootError(role.name, [...new Set(problems)])
  return order
}
