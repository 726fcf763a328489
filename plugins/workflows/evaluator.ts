import { setImmediate as turn } from 'node:timers/promises'
import { AskedThread } from '#kit/asked-thread'
import {
  type Answer,
  answerTo,
  type Expression,
  ExpressionError,
  isTemplate,
  type Question,
  type Scope,
  textsIn,
} from './expressions.ts'
import { hasTooManyParts, mostParts } from './outcome.ts'

/**
 * Memory of the thread: more than the largest scope and all that can be made of it. A single allocation that does not fit ends the whole process,
 * whatever limits the thread has.
 */
const resourceLimits = { maxOldGenerationSizeMb: 1_024, maxYoungGenerationSizeMb: 32, stackSizeMb: 4 }

type Made<T> = { readonly [K in keyof T]: string }
/** Texts up to this length are parsed on the main thread, and expressions are checked in groups of this length. */
const shortChars = 64 * 1024

/**
 * Evaluates templates and conditions in a thread of this process, one node at a time with tenants in turns, so that slow expressions of a tenant do
 * not delay other requests. Rejects with ExpressionError.
 */
export class Evaluator {
  readonly #thread = new AskedThread<Question, Answer>({
    module: new URL('./expression-thread.ts', import.meta.url),
    name: 'expressions',
    resourceLimits,
    // No limit is needed: the attempts under way bound the number of waiting questions.
    mostWaiting: Infinity,
    tooMany: () => new ExpressionError('too many wait'),
    died: (why) => new ExpressionError(why === 'memory' ? 'it needs too much memory' : 'it takes too long'),
  })

  /** Fills in the templates of values. Resolves to each value as JSON, by its name. */
  async render<T extends Readonly<Record<string, unknown>>>(
    tenantId: string,
    templates: T,
    scope: Scope,
  ): Promise<Made<T>> {
    const entries = Object.entries(templates)
    // A value without templates needs no evaluation.
    const isPlain = !textsIn(templates).some(({ text }) => isTemplate(text))
    if (isPlain) {
      return Object.fromEntries(entries.map(([name, value]) => [name, JSON.stringify(value)])) as Made<T>
    }
    return (await this.#ask(tenantId, { scope, templates })).made as Made<T>
  }
  /** The items of an array that a template makes, each as JSON; the first `most` and one more, if it makes more. Undefined: it makes no array. */
  async list(tenantId: string, items: unknown, scope: Scope, most: number): Promise<readonly string[] | undefined> {
    if (Array.isArray(items) && !textsIn(items).some(({ text }) => isTemplate(text)))
      return items.map((item) => JSON.stringify(item))
    return (await this.#ask(tenantId, { scope, templates: { items }, list: { name: 'items', most } })).items
  }
  async holds(tenantId: string, condition: string, scope: Scope): Promise<boolean> {
    return (await this.#ask(tenantId, { scope, condition })).holds!
  }

  /** A text as compact JSON: its value when it is JSON (`mayBeJson`), and the text as a string otherwise. Undefined: this has more than 10 MiB. */
  async json(tenantId: string, text: string, mayBeJson = true): Promise<string | undefined> {
    const question = { json: text, mayBeJson }
    return (text.length <= shortChars ? answerTo(question) : await this.#thread.ask(tenantId, question)).json
  }

  /** The problem of each template and condition; undefined: it has none. They are checked in groups, so that other work gets its turn. */
  async problems(tenantId: string, texts: readonly Expression[]): Promise<(string | undefined)[]> {
    const found: (string | undefined)[] = []
    for (let at = 0; at < texts.length;) {
      let chars = 0
      const check: Expression[] = []
      for (let one = texts[at]; one && (check.length === 0 || chars + one.text.length <= shortChars); one = texts[at]) {
        check.push({ text: one.text, isCondition: one.isCondition ?? false })
        chars += one.text.length
        at++
      }
      found.push(...(await this.#thread.ask(tenantId, { check })).problems!)
    }
    return found
  }

  async #ask(tenantId: string, question: Question): Promise<Answer> {
    const answer = await this.#thread.ask(tenantId, question)
    if (answer.problem !== undefined) throw new ExpressionError(answer.problem)
    return answer
  }
}

/** The value that templates made, as JSON. Rejects with ExpressionError when it has too many parts. */
export async function valueOf(json: string): Promise<Record<string, unknown>> {
  if (hasTooManyParts(json)) throw new ExpressionError(`it makes more than ${mostParts} values and names of fields`)
  if (json.length > mostParts) await turn()
  return JSON.parse(json) as Record<string, unknown>
}

/** The text of a JSON value: the content of a string, any other value as JSON. */
export const textOf = (json: string): string => (json.startsWith('"') ? (JSON.parse(json) as string) : json)
