import { Value } from '@sinclair/typebox/value'
import { type Entry, pluginApi, type Role } from './plugin.ts'
import { problemsOf, shownAt } from './problems.ts'

export class BootError extends Error {
  readonly problems: readonly string[]
  constructor(role: string, problems: readonly string[], cause?: unknown) {
    super(`role '${role}' cannot boot:\n${problems.map((p) => `  - ${p}`).join('\n')}`, { cause })
    this.name = 'BootError'
    this.problems = problems
  }
}

/** Converts strings from the environment and fills in defaults. Anything wrong is left for `plan` to report. */
export function settings(entry: Entry): unknown {
  const { plugin, config } = entry
  return Value.Default(plugin.config, Value.Convert(plugin.config, structuredClone(config ?? {})))
}

/** The settings in the form for the plugin. Only for an entry that `plan` has accepted. */
export const decoded = (entry: Entry): never => Value.Decode(entry.plugin.config, settings(entry)) as never

/** The names of listeners whose callers some plugin authenticates. */
export const guardedIn = (entries: readonly Entry[]): ReadonlySet<string> =>
  new Set(entries.flatMap((entry) => entry.plugin.guards?.(decoded(entry)) ?? []))

/** Risks of a role that can boot, one sentence each. */
export const risksOf = (role: Role): string[] =>
  role.plugins.flatMap((entry) =>
    (entry.plugin.risks?.(decoded(entry), role) ?? []).map((why) => `${entry.name}: ${why}`),
  )

/** The problems of a plugin's settings, one sentence each, in words an operator can act on. It never quotes a value, which may be a secret. */
export const configProblems = (entry: Entry): string[] =>
  problemsOf(`${entry.name}: config.`, entry.plugin.config, settings(entry), entry.where)

/** Pure: checks the whole role and returns its entries in start order, or throws with every problem found. */
export function plan(role: Role): Entry[] {
  const problems: string[] = []
  const say = ({ name, where }: Entry, problem: string): void => {
    problems.push(`${name}: ${problem}${shownAt(where?.(''))}`)
  }
  const makers = new Map<string, Entry[]>()
  const names = new Set<string>()
  for (const entry of role.plugins) {
    const { api, provides } = entry.plugin
    if (names.has(entry.name)) say(entry, 'listed twice')
    names.add(entry.name)
    if (api !== pluginApi) {
      say(entry, `speaks plugin api ${String(api)}, this kernel speaks ${pluginApi}; update the plugin`)
      continue
    }
    problems.push(...configProblems(entry))
    for (const { id, mode } of Object.values(provides)) {
      const others = makers.get(id) ?? []
      if (others.length > 0 && mode === 'one') {
        say(entry, `'${id}' is already provided by ${others[0]!.name}; remove one of them`)
      }
      makers.set(id, [...others, entry])
    }
  }
  const order: Entry[] = []
  const visit = (entry: Entry, path: readonly Entry[]): void => {
    if (path.includes(entry)) {
      const cycle = [...path.slice(path.indexOf(entry)), entry]
      return void problems.push(`cycle: ${cycle.map(({ name }) => name).join(' -> ')}`)
    }
    if (order.includes(entry)) return
    for (const { id, mode } of Object.values(entry.plugin.requires)) {
      const from = makers.get(id)
      if (!from && mode === 'one') say(entry, `nothing in this role provides '${id}'; add a plugin that does`)
      for (const maker of from ?? []) visit(maker, [...path, entry])
    }
    order.push(entry)
  }
  for (const entry of role.plugins) if (entry.plugin.api === pluginApi) visit(entry, [])
  if (problems.length > 0) throw new BootError(role.name, [...new Set(problems)])
  return order
}
