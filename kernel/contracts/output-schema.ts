import { createContext, Script } from 'node:vm'
import { Ajv, type Options, type ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import formats from 'ajv-formats'
import { type AppError, isAppError } from './errors.ts'
import { runErrors } from './run-errors.ts'

/** Schemas of answers, far below what a model follows. Their size bounds what compiling one costs. */
const maxSchemaChars = 65_536
/** A client's schema may be slow on purpose; an honest one takes milliseconds, on a machine that is busy some more. */
const maxMs = { compile: 2_000, check: 1_000 } as const
/** Compiled schemas kept: the same few are used again and again. */
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
  // One instance for one schema: what a client's `$id` names is nobody else's.
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

/** Undefined: it took too long. The virtual machine can stop what it runs, a backtracking pattern too. */
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
