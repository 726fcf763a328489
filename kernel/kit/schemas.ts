// Checks against clients' JSON Schemas: conductors refuse schemas that do not compile, and runtimes check answers.
import { hash } from 'node:crypto'
import { type AppError, isAppError } from '../contracts/errors.ts'
import { runErrors } from '../contracts/run-errors.ts'
import { AskedThread } from './asked-thread.ts'
import type { Question, Verdict } from './schema-thread.ts'

/** The most characters of an answer's schema. This bounds the cost of compiling, and no model follows a longer schema. */
const maxSchemaChars = 65_536
const mega = 1_048_576
/** How many schemas are remembered by their digest, including refused ones, so that checking one again costs nothing. */
const maxKnown = 1_000
/** MB of memory for a hundred schemas. A schema that needs more is refused. */
const schemasMb = 64
/** MB of memory per mebi of JSON as a value: `[{},{}]` takes 22, and its array grows by copying. */
const mbPerMega = 64

/** The schema that an answer must fit. */
export interface OutputSchema {
  /** A sentence about the problem of a value, for its author. Undefined when the value fits. Rejects with AppError 429 `too_many_schemas`. */
  problem(value: unknown): Promise<string | undefined>
  /** Does the same for a value that is already JSON. */
  problemOf(json: string): Promise<string | undefined>
}

/** Rejects with AppError 400 `invalid_response_format` for anything but a JSON Schema of draft 2020-12 or 07, and 429 `too_many_schemas`. */
export type OutputSchemas = (tenantId: string, schema: Readonly<Record<string, unknown>>) => Promise<OutputSchema>

interface SchemaBounds {
  /** So many questions of a tenant may wait; 16 by default. */
  readonly mostWaiting?: number
  /**
   * The most characters of a value that is checked; a mebi by default. A single allocation that is too large for a thread ends the whole process,
   * whatever the thread's limits are.
   */
  readonly maxValueChars?: number
}

/**
 * Compiles and checks in a thread that starts with the first schema, because a schema can be made to take seconds and this thread serves
 * everybody's requests.
 */
export function createOutputSchemas({ mostWaiting = 16, maxValueChars = mega }: SchemaBounds = {}): OutputSchemas {
  const maxOldGenerationSizeMb = schemasMb + mbPerMega * Math.ceil(maxValueChars / mega)
  const thread = new AskedThread<Question, Verdict>({
    module: new URL('./schema-thread.ts', import.meta.url),
    name: 'schemas',
    resourceLimits: { maxOldGenerationSizeMb, maxYoungGenerationSizeMb: 8, stackSizeMb: 4 },
    mostWaiting,
    tooMany: () => runErrors.tooManySchemas(),
    died: (why) => invalid(why === 'memory' ? 'The schema needs too much memory.' : 'The schema takes too long.'),
  })
  const ask = async (tenantId: string, question: Question): Promise<Verdict> => {
    const verdict = await thread.ask(tenantId, question)
    if (verdict.invalid !== undefined) throw invalid(verdict.invalid)
    return verdict
  }
  const known = new Map<string, Promise<OutputSchema>>()
  const compile = async (tenantId: string, schema: string): Promise<OutputSchema> => {
    if (schema.length > maxSchemaChars) throw invalid(`The schema has more than ${maxSchemaChars} characters.`)
    await ask(tenantId, { schema })
    const problemOf = async (value: string): Promise<string | undefined> => {
      if (value.length > maxValueChars) return `It has more than ${maxValueChars} characters as JSON.`
      return (await ask(tenantId, { schema, value })).problem
    }
    return { problem: (value) => problemOf(JSON.stringify(value)), problemOf }
  }
  return (tenantId, schema) => {
    const text = JSON.stringify(schema)
    // The digest includes the tenant: a schema may be refused because one tenant has too many waiting, which must not affect another tenant.
    const digest = hash('sha256', `${tenantId}\n${text}`)
    const before = known.get(digest)
    if (before) return before
    const compiling = compile(tenantId, text)
    known.set(digest, compiling)
    for (const [oldest] of known) if (known.size > maxKnown) known.delete(oldest)
    compiling.catch((error: unknown) => {
      if (!isAppError(error) || error.status !== 400) known.delete(digest)
    })
    return compiling
  }
}

const invalid = (message: string): AppError => runErrors.invalidResponseFormat({ message })
