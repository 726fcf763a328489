import { createContext, Script } from 'node:vm'
import { Environment } from '@marcbachmann/cel-js'
import { Liquid } from 'liquidjs'

// The languages of templates (Liquid) and of conditions (CEL). Checks only parse what tenants wrote; expression-thread.ts evaluates it.

/** CPU time in ms that all expressions of a node may take together, and what they may take besides for each MiB of JSON that they read. */
const mostMs = 100
const msOfMiB = 20
/** How many characters of JSON they may make. */
export const mostMade = 10 * 1024 * 1024
/** How many characters and items the filters of one template may allocate. */
const mostFiltered = 1_000_000
/** How many characters a condition may concatenate. The CEL evaluator has no limit of its own. */
const mostSummed = 64 * 1024 * 1024
/** How many characters a template or condition may have. */
export const longest = 100_000

/** A template or condition that failed, with a sentence for its author. */
export class ExpressionError extends Error {}

const liquid = new Liquid({
  strictVariables: true,
  strictFilters: true,
  ownPropertyOnly: true,
  // Templates must not include other templates or files.
  templates: {},
  parseLimit: longest,
  memoryLimit: mostFiltered,
  outputEscape: (value: unknown) => (typeof value === 'string' ? value : (JSON.stringify(value) ?? '')),
})

/** Limits the output of a template, including its variables, so that a long text is refused before it is complete. */
class BoundedText {
  buffer = ''
  write(part: unknown): void {
    this.buffer += String(part)
    if (this.buffer.length > mostMade) throw new ExpressionError(tooMuch)
  }
}
const tooMuch = 'it makes more than 10 MiB'
const { renderer } = liquid
const renderTemplates = renderer.renderTemplates.bind(renderer)
renderer.renderTemplates = (templates, context, into = new BoundedText()) => renderTemplates(templates, context, into)

const cel = new Environment({
  unlistedVariablesAreDyn: true,
  limits: { maxAstNodes: 2_000, maxDepth: 50, maxListElements: 1_000, maxMapEntries: 1_000, maxCallArguments: 16 },
})

// Expressions of tenants run in a `vm`, which can stop them. Both languages are free of side effects, but neither guarantees an end.
const stoppable = new Script('work()')
const room = createContext({ work: undefined })

/**
 * The timeout of `vm` counts wall time, which passes on a busy machine without any work being done. The work is therefore repeated with more time
 * until it has had nearly all of its CPU time.
 */
function bounded<T>(ms: number, work: () => T): T {
  for (let timeout = ms; ; timeout *= 2) {
    const before = process.threadCpuUsage()
    try {
      room['work'] = work
      return stoppable.runInContext(room, { timeout }) as T
    } catch (cause) {
      if ((cause as { code?: unknown } | undefined)?.code !== 'ERR_SCRIPT_EXECUTION_TIMEOUT') {
        const text = cause instanceof Error ? cause.message : String(cause)
        throw new ExpressionError(text.split('\n', 1)[0]!.slice(0, 500))
      }
      const { user, system } = process.threadCpuUsage(before)
      if (user + system >= ms * 900 || timeout > 30 * ms) throw new ExpressionError(`it takes longer than ${ms} ms`)
    } finally {
      room['work'] = undefined
    }
  }
}

/** A template that is only `{{ value }}` makes the value itself, not its text. */
const alone = /^\s*\{\{-?((?:(?!\}\}|\{\{)[\s\S])*?)-?\}\}\s*$/
export const isTemplate = (text: string): boolean => text.includes('{{') || text.includes('{%')

/** A template or a condition. */
export interface Expression {
  readonly text: string
  readonly isCondition?: boolean
}

/** Why an expression cannot be parsed; undefined: it can. Called before the expression is ever used. */
export function expressionProblem({ text, isCondition = false }: Expression): string | undefined {
  if (text.length > longest) return `a ${isCondition ? 'condition' : 'template'} has at most ${longest} characters`
  return problemOf(() => void (isCondition ? cel.parse(plain(text)) : liquid.parse(text)))
}

// Parsing needs no time limit, because the length of the text is limited.
function problemOf(parse: () => void): string | undefined {
  try {
    parse()
    return undefined
  } catch (error) {
    return (error as Error).message.split('\n', 1)[0]
  }
}

const noText = { path: '', text: '' } as const
/** Of the names on a path only so much is shown: a name may have megabytes, and each text behind it repeats them. */
const shownName = 100

/**
 * The strings in a value with their paths. Each may be a template. An empty text stands for whatever else is in it, so that a caller that has its turn
 * between texts has one in an array of numbers as well. No recursion, which would cost each text as many steps as it is deep.
 */
export function* textsIn(value: unknown): Generator<{ readonly path: string; readonly text: string }> {
  if (typeof value === 'string') yield { path: '', text: value }
  if (typeof value !== 'object' || value === null) return
  const open = [insideOf(value, '')]
  for (let inside = open.at(-1); inside; inside = open.at(-1)) {
    const { value: around, names, path } = inside
    if (inside.at === (names ?? around).length) {
      open.pop()
      continue
    }
    const name = names?.[inside.at] ?? inside.at
    const one = around[name]
    inside.at++
    if (typeof one === 'string') yield { path: below(path, name), text: one }
    else {
      if (typeof one === 'object' && one !== null) open.push(insideOf(one, below(path, name)))
      yield noText
    }
  }
}
interface Inside {
  readonly value: { readonly [name: string | number]: unknown; readonly length: number }
  /** Absent: the value is an array. */
  readonly names: readonly string[] | undefined
  readonly path: string
  at: number
}
const insideOf = (value: object, path: string): Inside => ({
  value: value as Inside['value'],
  names: Array.isArray(value) ? undefined : Object.keys(value),
  path,
  at: 0,
})
const below = (path: string, name: string | number): string => {
  const shown = typeof name === 'string' && name.length > shownName ? name.slice(0, shownName) : name
  return path === '' ? `${shown}` : `${path}/${shown}`
}

const reference = /\bnodes\s*(?:\.\s*([A-Za-z_][\w-]*)|\[\s*(["'])([^"'\]]+)\2\s*\])/g

/** The ids of the nodes to which an expression refers. In `nodes.a-b` the hyphen may be a minus; `known` decides. */
export function nodesIn(text: string, known: (id: string) => boolean): string[] {
  return references(text).map((ids) => ids.find(known) ?? ids[0]!)
}
/** Everything in an expression that may be the id of a node. For callers that do not know the ids. */
export const mentionedIn = (text: string): string[] => references(text).flat()

/** The possible ids of each reference, the longest first. */
function references(text: string): string[][] {
  if (!text.includes('nodes')) return []
  return [...text.matchAll(reference)].map(([, plainId, , quoted]) => {
    if (quoted !== undefined) return [quoted]
    // An id has 64 characters at most.
    const parts = plainId!.slice(0, 64).split('-')
    return parts.map((_, i) => parts.slice(0, parts.length - i).join('-'))
  })
}

/** The variables that templates and conditions see. JSON of tenants stays text until the thread parses it. */
export interface Scope {
  /** Variables by name, as JSON. */
  readonly json: Readonly<Record<string, string>>
  readonly values?: Readonly<Record<string, unknown>>
  readonly nodes: readonly {
    readonly id: string
    readonly status: string
    readonly output: string | null
    readonly error: string | null
  }[]
}

export type Question = Evaluation | Text | { readonly check: readonly Expression[] }
interface Text {
  readonly json: string
  readonly mayBeJson: boolean
}
interface Evaluation {
  readonly scope: Scope
  /** Values whose strings are templates, by name. */
  readonly templates?: Readonly<Record<string, unknown>>
  /** Name of the template that has to make an array. The answer then has its items, and one more than `most` if there are more. */
  readonly list?: { readonly name: string; readonly most: number }
  readonly condition?: string
}

export interface Answer {
  /** What is wrong, in words for the author of the expression. */
  readonly problem?: string
  /** The result of each template as JSON, by name. */
  readonly made?: Readonly<Record<string, string>>
  /** The items of the list, each as JSON. Absent: the value is no array. */
  readonly items?: readonly string[]
  readonly holds?: boolean
  /** The problem of each expression to check, in order. */
  readonly problems?: readonly (string | undefined)[]
  /** The text as compact JSON. Absent: this is longer than anything that may be made. */
  readonly json?: string
}

/**
 * Answers a question about expressions of tenants. An evaluation may block for a while, so it belongs in a thread of its own; short JSON may be
 * parsed anywhere.
 */
export function answerTo(question: Question): Answer {
  if ('json' in question) return jsonOf(question)
  if ('check' in question) return { problems: question.check.map(expressionProblem) }
  const { scope, templates, list, condition } = question
  try {
    const seen = seenOf(scope)
    const chars = charsOf(scope)
    return bounded(mostMs + msOfMiB * Math.floor(chars / 2 ** 20), () => {
      if (condition !== undefined) return { holds: holds(condition, seen, chars) }
      const maker = new Maker(seen)
      if (list === undefined) {
        return {
          made: Object.fromEntries(Object.entries(templates!).map(([name, value]) => [name, maker.json(value)])),
        }
      }
      const given = templates![list.name]
      if (Array.isArray(given)) return { items: given.map((item) => maker.json(item)) }
      const value = maker.value(given)
      if (!Array.isArray(value)) return {}
      return { items: value.slice(0, list.most + 1).map((item: unknown) => maker.written(item)) }
    })
  } catch (error) {
    if (error instanceof ExpressionError) return { problem: error.message }
    throw error
  }
}

function jsonOf({ json: text, mayBeJson }: Text): Answer {
  let value: unknown = text
  try {
    if (mayBeJson) value = JSON.parse(text)
  } catch {
    // It is just a text.
  }
  const json = JSON.stringify(value)
  return json.length > mostMade ? {} : { json }
}

type Seen = Record<string, unknown>
const parsed = (json: string | null): unknown => (json === null ? null : JSON.parse(json))
const seenOf = ({ json, values, nodes }: Scope): Seen => ({
  ...values,
  ...Object.fromEntries(Object.entries(json).map(([name, text]) => [name, parsed(text)])),
  nodes: Object.fromEntries(
    nodes.map(({ id, status, output, error }) => [id, { status, output: parsed(output), error: parsed(error) }]),
  ),
})
const charsOf = ({ json, nodes }: Scope): number =>
  Object.values(json).reduce((sum, text) => sum + text.length, 0) +
  nodes.reduce((sum, { output }) => sum + (output?.length ?? 0), 0)

/** Fills in templates and writes the results as JSON. All results together have a size limit. */
class Maker {
  readonly #seen: Seen
  #left = mostMade
  constructor(seen: Seen) {
    this.#seen = seen
  }

  value(template: unknown): unknown {
    if (typeof template !== 'string' || !isTemplate(template)) return template
    const only = alone.exec(template)?.[1]
    if (only === undefined) return liquid.parseAndRenderSync(template, this.#seen) as unknown
    return liquid.evalValueSync(only, this.#seen) as unknown
  }
  json(value: unknown): string {
    if (Array.isArray(value)) return `[${value.map((one) => this.json(one)).join(',')}]`
    if (typeof value !== 'object' || value === null) return this.written(this.value(value))
    return `{${Object.entries(value)
      .map(([key, one]) => `${JSON.stringify(key)}:${this.json(one)}`)
      .join(',')}}`
  }
  /** Serializes a value. A value that JSON cannot represent becomes `null`. */
  written(value: unknown): string {
    const text = JSON.stringify(value) ?? 'null'
    this.#left -= text.length
    if (this.#left < 0) throw new ExpressionError(tooMuch)
    return text
  }
}

/** Throws ExpressionError when the condition is neither true nor false. */
function holds(condition: string, seen: Seen, chars: number): boolean {
  const text = plain(condition)
  if (text.split('+').length * chars > mostSummed) throw new ExpressionError('it adds up too much')
  const made: unknown = cel.parse(text)(withIntegers(seen) as Seen)
  if (typeof made !== 'boolean') throw new ExpressionError('the condition is neither true nor false')
  return made
}

/** Replaces the braces of templates in a condition by parentheses, because people write `{{ input.x }} > 3`. */
function plain(text: string): string {
  let made = ''
  // Scanned by hand, because a regular expression would start anew at every brace.
  for (let at = 0; ;) {
    const from = text.indexOf('{{', at)
    const to = from < 0 ? -1 : text.indexOf('}}', from + 2)
    if (to < 0) return made + text.slice(at)
    made += `${text.slice(at, from)}(${text
      .slice(from + 2, to)
      .replace(/^-/, '')
      .replace(/-$/, '')})`
    at = to + 2
  }
}

/** Converts whole numbers of JSON to integers of CEL, so that `input.count + 1` is a sum. Changes the value in place. */
function withIntegers(value: unknown): unknown {
  if (typeof value === 'number') return Number.isSafeInteger(value) ? BigInt(value) : value
  if (typeof value !== 'object' || value === null) return value
  const parts = value as Record<string, unknown>
  for (const key of Object.keys(parts)) parts[key] = withIntegers(parts[key])
  return parts
}
