// The thread in which schemas of clients are compiled and values checked against them. See schemas.ts.
import { createContext, Script } from 'node:vm'
import { type MessagePort, parentPort } from 'node:worker_threads'
import { Ajv, type Options, type ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import formats from 'ajv-formats'

export interface Question {
  /** A JSON Schema as JSON. */
  readonly schema: string
  /** The value to check, as JSON. Absent: the schema itself is checked. */
  readonly value?: string
}

export interface Verdict {
  /** Why the schema is invalid. */
  readonly invalid?: string
  /** Why the value does not fit. Absent: it fits. */
  readonly problem?: string
}

/** Milliseconds. A client's schema can be slow on purpose; an honest one takes milliseconds, and more on a busy machine. */
const maxMs = { compile: 2_000, check: 1_000 } as const
/** How many compiled schemas are cached, because the same few are used repeatedly. */
const maxCached = 100

const options: Options = {
  strict: false,
  inlineRefs: false,
  addUsedSchema: false,
  logger: false,
  validateSchema: false,
}

class Invalid extends Error {}

if (parentPort) answerOn(parentPort)

function answerOn(port: MessagePort): void {
  const compiled = new Map<string, ValidateFunction>()
  const compiledOf = (schema: string): ValidateFunction => {
    const known = compiled.get(schema)
    if (known) return known
    const validate = compile(JSON.parse(schema))
    if (compiled.size >= maxCached) compiled.clear()
    compiled.set(schema, validate)
    return validate
  }
  port.on('message', ({ schema, value }: Question) => port.postMessage(verdictOn(() => compiledOf(schema), value)))
  port.postMessage('loaded')
}

function verdictOn(schema: () => ValidateFunction, value: string | undefined): Verdict {
  try {
    const validate = schema()
    const problem = value === undefined ? undefined : problemOf(validate, JSON.parse(value))
    return problem === undefined ? {} : { problem }
  } catch (error) {
    if (error instanceof Invalid) return { invalid: error.message }
    throw error
  }
}

function compile(schema: Readonly<Record<string, unknown>>): ValidateFunction {
  if ('$async' in schema) throw new Invalid('An asynchronous schema cannot be checked here.')
  // Each schema has its own instance, so that one client's `$id` is invisible to others.
  const ajv = ajvOf(schema['$schema'])
  formats.default(ajv)
  const checked = bounded(maxMs.compile, () => {
    if (ajv.validateSchema(schema) !== true) {
      const [first] = ajv.errors ?? []
      const what = `${first?.instancePath || '/'} ${first?.message ?? 'is not valid'}`
      throw new Invalid(`The schema is no JSON Schema: ${what}.`)
    }
    return ajv.compile(schema)
  })
  if (!checked) throw new Invalid('The schema takes too long to compile.')
  return checked.value
}

function ajvOf(draft: unknown): Ajv {
  if (draft === undefined) return new Ajv2020(options)
  const name = typeof draft === 'string' ? draft.replace(/^http:/, 'https:').replace(/#$/, '') : ''
  if (name === 'https://json-schema.org/draft/2020-12/schema') return new Ajv2020(options)
  if (name === 'https://json-schema.org/draft-07/schema') return new Ajv(options)
  throw new Invalid('`$schema` names another draft than 2020-12 and 07.')
}

function problemOf(validate: ValidateFunction, value: unknown): string | undefined {
  const checked = bounded(maxMs.check, () => validate(value))
  if (!checked) return 'It could not be checked in time.'
  if (checked.value) return undefined
  const [first] = validate.errors ?? []
  return `${first?.instancePath || 'The value'} ${first?.message ?? 'does not fit'}.`
}

/** Runs `work` for at most `timeout` ms. Undefined when it took longer. A `vm` can stop anything that it runs, even a backtracking pattern. */
function bounded<T>(timeout: number, work: () => T): { readonly value: T } | undefined {
  try {
    const value = new Script('work()').runInContext(createContext({ work }), { timeout }) as T
    return { value }
  } catch (cause) {
    if ((cause as { code?: unknown } | undefined)?.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT') return undefined
    if (cause instanceof Invalid) throw cause
    throw new Invalid('The schema cannot be compiled: it may refer to something that it does not hold.')
  }
}
