// For whoever takes schemas of answers from clients: the conductor, which refuses what does not compile, and runtimes, which check answers.
import { hash } from 'node:crypto'
import { Worker } from 'node:worker_threads'
import { type AppError, isAppError } from '../contracts/errors.ts'
import { runErrors } from '../contracts/run-errors.ts'
import type { Question, Verdict } from './schema-thread.ts'

/** The longest schema of an answer. It bounds what compiling costs, and no model follows a schema of that size. */
const maxSchemaChars = 65_536
/** The longest value that is checked. A thread that one allocation is too large for ends the process, whatever bounds it has. */
const maxValueChars = 1_048_576
/** How many schemas are known by their digest, refused ones as well: asking for one again costs nothing. */
const maxKnown = 1_000
/** How many questions of a tenant may wait. */
const maxWaiting = 16
/** Enough for a hundred schemas and the longest value; a schema that needs more is refused. */
const resourceLimits = { maxOldGenerationSizeMb: 128, maxYoungGenerationSizeMb: 8, stackSizeMb: 4 }
/** The thread itself stops what takes long. It is stopped from here if it fails to, or if it cannot even start. */
const hungMs = 15_000

/** What an answer must fit. */
export interface OutputSchema {
  /** What is wrong with a value, in words for whoever made it; undefined when it fits. Rejects with AppError 429 `too_many_schemas`. */
  problem(value: unknown): Promise<string | undefined>
}

/** Rejects with AppError 400 `invalid_response_format` for what is no JSON Schema of draft 2020-12 or 07, and 429 `too_many_schemas`. */
export type OutputSchemas = (tenantId: string, schema: Readonly<Record<string, unknown>>) => Promise<OutputSchema>

/**
 * Compiles and checks in a thread that starts with the first schema: a schema can be made to take seconds, and this thread has
 * requests of everybody to answer.
 */
export function createOutputSchemas(): OutputSchemas {
  const thread = new SchemaThread()
  const known = new Map<string, Promise<OutputSchema>>()
  const compile = async (tenantId: string, schema: string): Promise<OutputSchema> => {
    if (schema.length > maxSchemaChars) throw invalid(`The schema has more than ${maxSchemaChars} characters.`)
    await thread.ask(tenantId, { schema })
    return {
      async problem(value) {
        const text = JSON.stringify(value)
        if (text.length > maxValueChars) return `It has more than ${maxValueChars} characters as JSON.`
        return (await thread.ask(tenantId, { schema, value: text })).problem
      },
    }
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

interface Asked {
  readonly question: Question
  resolve(verdict: Verdict): void
  reject(error: unknown): void
}

/** One thread, which answers one question at a time; tenants take turns. One that dies over a question is replaced for the next. */
class SchemaThread {
  #worker: Worker | undefined
  /** By tenant; whose turn it is stands first. */
  readonly #waiting = new Map<string, Asked[]>()
  #current: Asked | undefined
  #hung: NodeJS.Timeout | undefined

  /** Rejects with AppError when the schema is none, or too much is asked. */
  async ask(tenantId: string, question: Question): Promise<Verdict> {
    const line = this.#waiting.get(tenantId) ?? []
    if (line.length >= maxWaiting) throw runErrors.tooManySchemas()
    const { promise, resolve, reject } = Promise.withResolvers<Verdict>()
    line.push({ question, resolve, reject })
    this.#waiting.set(tenantId, line)
    this.#next()
    const verdict = await promise
    if (verdict.invalid !== undefined) throw invalid(verdict.invalid)
    return verdict
  }

  #next(): void {
    const [turn] = this.#waiting
    if (this.#current || !turn) return
    const [tenantId, line] = turn
    this.#current = line.shift()!
    this.#waiting.delete(tenantId)
    if (line.length > 0) this.#waiting.set(tenantId, line)
    const worker = (this.#worker ??= this.#start())
    worker.ref()
    this.#hung = setTimeout(() => void worker.terminate(), hungMs)
    worker.postMessage(this.#current.question)
  }
  #start(): Worker {
    const url = new URL('./schema-thread.ts', import.meta.url)
    // No preloads of this process, and nothing of its environment.
    const worker = new Worker(url, { name: 'schemas', resourceLimits, execArgv: [], env: {} })
    let failure: unknown
    worker.on('message', (verdict: Verdict) => this.#answered((asked) => asked.resolve(verdict)))
    worker.on('error', (error) => (failure = error))
    worker.once('exit', () => {
      this.#worker = undefined
      this.#answered((asked) => asked.reject(causeOf(failure)))
    })
    return worker
  }
  #answered(how: (asked: Asked) => void): void {
    const asked = this.#current
    clearTimeout(this.#hung)
    this.#worker?.unref()
    this.#current = undefined
    if (asked) how(asked)
    this.#next()
  }
}

/** Why a thread ended over a question. Undefined: it was stopped. */
function causeOf(failure: unknown): unknown {
  if (failure === undefined) return invalid('The schema takes too long.')
  const { code } = failure as { code?: unknown }
  return code === 'ERR_WORKER_OUT_OF_MEMORY' ? invalid('The schema needs too much memory.') : failure
}

const invalid = (message: string): AppError => runErrors.invalidResponseFormat({ message })
