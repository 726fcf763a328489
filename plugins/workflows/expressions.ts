import { setImmediate as turn } from 'node:timers/promises'
import { createContext, Script } from 'node:vm'
import { Environment } from '@marcbachmann/cel-js'
import { Liquid } from 'liquidjs'

/** The longest that one template or condition may take, and how much it may make. */
const mostMs = 50
const mostChars = 1_000_000
const longest = 100_000

/** What templates and conditions see: values of JSON. */
export type Scope = Readonly<Record<string, unknown>>

/** A template or condition that went wrong, in words for whoever wrote it. */
export class ExpressionError extends Error {}
class TooSlow extends ExpressionError {}
/** So often something is begun again that took too long: on a busy machine time passes in which nothing was done. */
const chances = 5

/** Does something with templates or conditions, each of which holds up nobody else for longer than 50 ms. */
export async function patiently<T>(work: () => T): Promise<T> {
  for (let chance = 1; ; chance++) {
    try {
      return work()
    } catch (error) {
      if (!(error instanceof TooSlow) || chance === chances) throw error
      await turn()
    }
  }
}

const liquid = new Liquid({
  strictVariables: true,
  strictFilters: true,
  ownPropertyOnly: true,
  // No template leads to another one, and none to a file.
  templates: {},
  parseLimit: longest,
  renderLimit: mostMs,
  memoryLimit: mostChars,
  outputEscape: (value: unknown) => (typeof value === 'string' ? value : (JSON.stringify(value) ?? '')),
})

const cel = new Environment({
  unlistedVariablesAreDyn: true,
  limits: { maxAstNodes: 2_000, maxDepth: 50, maxListElements: 1_000, maxMapEntries: 1_000, maxCallArguments: 16 },
})

// What is written by tenants runs where a `vm` can stop it: both languages are without side effects, and neither promises an end.
const stoppable = new Script('work()')
const room = createContext({ work: undefined })

function bounded<T>(work: () => T): T {
  try {
    room['work'] = work
    return stoppable.runInContext(room, { timeout: mostMs }) as T
  } catch (cause) {
    if ((cause as { code?: unknown } | undefined)?.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT') {
      throw new TooSlow(`it takes longer than ${mostMs} ms`)
    }
    const text = cause instanceof Error ? cause.message : String(cause)
    throw new ExpressionError(text.split('\n', 1)[0]!.slice(0, 500))
  } finally {
    room['work'] = undefined
  }
}

/** `{{ value }}` alone stands for the value itself, not for its text. */
const alone = /^\s*\{\{-?((?:(?!\}\}|\{\{)[\s\S])*?)-?\}\}\s*$/
const isTemplate = (text: string): boolean => text.includes('{{') || text.includes('{%')

/** What is wrong with a template, before it is ever used. */
export function templateProblem(text: string): string | undefined {
  if (!isTemplate(text)) return undefined
  if (text.length > longest) return `a template has at most ${longest} characters`
  return problemOf(() => void liquid.parse(text))
}

/** What is wrong with a condition. */
export function conditionProblem(text: string): string | undefined {
  if (text.length > longest) return `a condition has at most ${longest} characters`
  return problemOf(() => void cel.parse(plain(text)))
}

// What is only parsed is bounded by its length.
function problemOf(parse: () => void): string | undefined {
  try {
    parse()
    return undefined
  } catch (error) {
    return (error as Error).message.split('\n', 1)[0]
  }
}

/** The texts in a value: those that may be templates. */
export function* textsIn(value: unknown, path = ''): Generator<{ readonly path: string; readonly text: string }> {
  if (typeof value === 'string') yield { path, text: value }
  else if (typeof value === 'object' && value !== null) {
    for (const [key, inner] of Object.entries(value)) yield* textsIn(inner, path === '' ? key : `${path}/${key}`)
  }
}

const reference = /\bnodes\s*(?:\.\s*([A-Za-z_][\w-]*)|\[\s*(["'])([^"'\]]+)\2\s*\])/g

/** The ids of nodes to which a template or condition refers. In `nodes.a-b` a hyphen may be a minus: `known` decides. */
export function nodesIn(text: string, known: (id: string) => boolean): string[] {
  return references(text).map((ids) => ids.find(known) ?? ids[0]!)
}
/** The same where nobody knows: all that may be ids. */
export const mentionedIn = (text: string): string[] => references(text).flat()

/** For each reference what it may be about, the longest id first. */
function references(text: string): string[][] {
  if (!text.includes('nodes')) return []
  return [...text.matchAll(reference)].map(([, plainId, , quoted]) => {
    if (quoted !== undefined) return [quoted]
    const parts = plainId!.split('-')
    return parts.map((_, i) => parts.slice(0, parts.length - i).join('-'))
  })
}

/** A value with its templates filled in. Throws ExpressionError. */
export function render(value: unknown, scope: Scope): unknown {
  if (typeof value === 'string') {
    if (!isTemplate(value)) return value
    const only = alone.exec(value)?.[1]
    const made = bounded(() =>
      only === undefined ? liquid.parseAndRenderSync(value, scope) : liquid.evalValueSync(only, scope),
    )
    // A value of the room's own realm, or one that is no JSON, is none that could be kept.
    return made === undefined ? null : made
  }
  if (Array.isArray(value)) return value.map((one) => render(one, scope))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, render(one, scope)]))
}

/** The text of a template. */
export function renderText(template: string, scope: Scope): string {
  const made = render(template, scope)
  return typeof made === 'string' ? made : JSON.stringify(made)
}

/** Whether a condition holds. Throws ExpressionError, also when it is neither true nor false. */
export function holds(condition: string, scope: Scope): boolean {
  const made = bounded(() => cel.parse(plain(condition))(withIntegers(scope)))
  if (typeof made !== 'boolean') throw new ExpressionError('the condition is neither true nor false')
  return made
}

/** Braces of templates are left out of a condition: `{{ input.x }} > 3` is what people write. */
const plain = (text: string): string => text.replaceAll(/\{\{-?\s*([\s\S]*?)\s*-?\}\}/g, '($1)')

/** Numbers of JSON that are whole are integers of CEL, so that `input.count + 1` is a sum. */
const withIntegers = (scope: Scope): Record<string, unknown> =>
  JSON.parse(JSON.stringify(scope), (_, value: unknown) =>
    typeof value === 'number' && Number.isSafeInteger(value) ? BigInt(value) : value,
  ) as Record<string, unknown>
