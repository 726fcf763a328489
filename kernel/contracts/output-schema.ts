import { createContext, Script } from 'node:vm'
import { Ajv, type Options, type ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import formats from 'ajv-formats'
import { type AppError, isAppError } from './errors.ts'
import { runErrors } from './run-errors.ts'

/** The longest schema of an answer. It bounds what compiling costs, and no model follows a schema of that size. */
const maxSchemaChars = 65_536
/** The longest that a schema may take. A client's schema can be slow on purpose; an honest one takes milliseconds, and more on a busy machine. */
const maxMs = { compile: 2_000, check: 1_000 } as const
/** How many compiled schemas are kept: the same few are used again and again. */
const maxCached = 100

/** What an answer must fit. */
export interface OutputSchema {
  /** What is wrong with a value, in words for whoever made it; undefined when it fits. */
  problem(value: unknown): string | undefined
}

/** Throws AppError 400 `invalid_response_format` for what is no JSON Schema of draft 2020-12 or 07. */
export type OutputSchemas = (schema: Readonly<Record<string, unknown>>) => OutputSchema

/** Both ends use it: the conductor refuses what does not compile, the runtime checks answers. */
export function createOutputSchemas(): OutputSchemas {
  const cached = new Map<string, OutputSchema>()
  return (schema) => {
    const text = JSON.stringify(schema)
    const known = cached.get(text)
    if (known) return known
    if (text.length > maxSchemaChars) throw invalid(`The schema has more than ${maxSchemaChars} characters.`)
    const validate = compile(schema)
    const compiled = { problem: (value: unknown) => problemOf(validate, value) }
    if (cached.size >= maxCached) cached.clear()
    cached.set(text, compiled)
    return compiled
  }
}

const options: Options = {
  strict: false,
  inlineRefs: false,
  addUsedSchema: false,
  logger: false,
  validateSchema: false,
}

function compile(schema: Readonly<Record<string, unknown>>): ValidateFunction {
  if ('$async' in schema) throw invalid('An asynchronous schema cannot be checked here.')
  // Each schema has its own instance, so that the `$id` of one client cannot be seen by another.
  const ajv = ajvOf(schema['$schema'])
  formats.default(ajv)
  const checked = bounded(maxMs.compile, () => {
    if (ajv.validateSchema(schema) !== true) {
      const [first] = ajv.errors ?? []
      throw invalid(`The schema is no JSON Schema: ${first?.instancePath || '/'} ${first?.message ?? 'is not valid'}.`)
    }
    return ajv.compile(schema)
  })
  if (!checked) throw invalid('The schema takes too long to compile.')
  return checked.value
}

function ajvOf(draft: unknown): Ajv {
  if (draft === undefined) return new Ajv2020(options)
  const name = typeof draft === 'string' ? draft.replace(/^http:/, 'https:').replace(/#$/, '') : ''
  if (name === 'https://json-schema.org/draft/2020-12/schema') return new Ajv2020(options)
  if (name === 'https://json-schema.org/draft-07/schema') return new Ajv(options)
  throw invalid('`$schema` names another draft than 2020-12 and 07.')
}

function problemOf(validate: ValidateFunction, value: unknown): string | undefined {
  const checked = bounded(maxMs.check, () => validate(value))
  if (!checked) return 'It could not be checked in time.'
  if (checked.value) return undefined
  const [first] = validate.errors ?? []
  return `${first?.instancePath || 'The value'} ${first?.message ?? 'does not fit'}.`
}

/** Runs `work` for at most `timeout` ms; undefined when it took longer. A `vm` can stop anything it runs, even a backtracking pattern. */
function bounded<T>(timeout: number, work: () => T): { readonly value: T } | undefined {
  try {
    const value = new Script('work()').runInContext(createContext({ work }), { timeout }) as T
    return { value }
  } catch (cause) {
    if ((cause as { code?: unknown } | undefined)?.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT') return undefined
    if (isAppError(cause)) throw cause
    throw invalid('The schema cannot be compiled: it may refer to something that it does not hold.', cause)
  }
}

const invalid = (message: string, cause?: unknown): AppError => runErrors.invalidResponseFormat({ message, cause })
