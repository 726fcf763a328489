import type { TSchema } from '@sinclair/typebox'
import { Value, type ValueError } from '@sinclair/typebox/value'

/** The origin of a setting. */
export interface Origin {
  /** `config/gateway.yaml:12`. */
  readonly at: string
  /** Names of the environment variables that may fill the setting. */
  readonly variables: readonly string[]
}

/**
 * The problems of a value, one sentence per setting, in words an operator can act on. It never quotes the value, which may be a secret. `label`
 * goes before the dotted path.
 */
export function problemsOf(label: string, schema: TSchema, value: unknown, where?: (path: string) => Origin): string[] {
  const seen = new Set<string>()
  const problems: string[] = []
  for (const error of Value.Errors(schema, value)) {
    // One sentence per setting, because TypeBox reports a missing property both as absent and as of the wrong type.
    if (seen.has(error.path)) continue
    seen.add(error.path)
    problems.push(`${label}${dotted(error.path)} ${sentence(error)}${remedy(where?.(error.path))}`)
  }
  return problems
}

/** A JSON pointer as people write it. Names of settings may contain a slash, e.g. names of models. */
const dotted = (pointer: string): string =>
  pointer.slice(1).replaceAll('/', '.').replaceAll('~1', '/').replaceAll('~0', '~')

export const shownAt = (origin: Origin | undefined): string => (origin ? ` (${origin.at})` : '')

/** The end of a sentence about a setting: which variables change it, and where it is. */
export const remedy = (origin: Origin | undefined): string =>
  (origin?.variables.length ? `; set ${origin.variables.join(' or ')}` : '') + shownAt(origin)

function sentence({ message, schema }: ValueError): string {
  if (message === 'Unexpected property') {
    return `is not a setting here; known: ${Object.keys((schema as { properties?: object }).properties ?? {}).join(', ') || 'none'}`
  }
  if (message === 'Expected required property') {
    return typeof schema['missing'] === 'string' ? `is required: ${schema['missing']}` : 'is required'
  }
  // The types in kit/settings.ts set `expects`, because a pattern means nothing to an operator.
  if (typeof schema['expects'] === 'string') return `expects ${schema['expects']}`
  const choices = (schema['anyOf'] as readonly TSchema[] | undefined)?.map((s) => s['const'] as unknown)
  if (choices?.every((c) => c !== undefined)) return `expects one of ${choices.join(', ')}`
  return message.replace(/^Expected/, 'expects')
}
