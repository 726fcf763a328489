// Checks against JSON Schemas of clients: conductors refuse schemas that do not compile, and runtimes check answers.
import { hash } from 'node:crypto'
import { type AppError, isAppError } from '../contracts/errors.ts'
import { runErrors } from '../contracts/run-errors.ts'
import { AskedThread } from './asked-thread.ts'
import type { Question, Verdict } from './schema-thread.ts'

/** The longest schema of an answer. It bounds what compiling costs, and no model follows a schema of that size. */
const maxSchemaChars = 65_536
const mega = 1_048_576
/** How many schemas are known by their digest, refused ones as well: asking for one again costs nothing. */
const maxKnown = 1_000
/** Enough for a hundred schemas; a schema that needs more is refused. */
const schemasMb = 64
/** For each mebi of JSON as a value: `[{},{}]` takes 22, and its array grows by copies. */
const mbPerMega = 64

/** What an answer must fit. */
export interface OutputSchema {
  /** The problem of a value, as a sentence for its author; undefined when it matches. Rejects with AppError 429 `too_many_schemas`. */
  problem(value: unknown): Promise<string | undefined>
  /** The same of a value that is JSON already. */
  problemOf(json: string): Promise<string | undefined>
}

/** Rejects with AppError 400 `invalid_response_format` for anything but a JSON Schema of draft 2020-12 or 07, and 429 `too_many_schemas`. */
export type OutputSchemas = (tenantId: string, schema: Readonly<Record<string, unknown>>) => Promise<OutputSchema>

interface SchemaBounds {
  /** So many questions of a tenant may wait; 16 by default. */
  readonly mostWaiting?: number
  /** The longest value that is checked; a mebi by default. A thread that one allocation is too large for ends the process, whatever bounds it has. */
  readonly maxValueChars?: number
}

/**
 * Compiles and checks in a thread that starts with the first schema: a schema can be made to take seconds, and this thread has
 * requests of everybody to answer.
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
    // A schema may be refused for what another tenant has waiting, and the answer is then not that tenant's: each has its own.
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
