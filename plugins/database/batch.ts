import pg, { type Connection } from 'pg'
import type { Statement } from '#contracts/database'

interface Columns {
  readonly names: readonly string[]
  readonly parsers: readonly ((text: string) => unknown)[]
  /** A row of nulls. Copying it gives all rows of a statement one hidden class. */
  readonly blank: Readonly<Record<string, null>>
}

interface PreparedStatement {
  readonly text: string
  columns: Columns | undefined
  uses: number
}

/**
 * PostgreSQL keeps the plan of a prepared statement. In tables that are nearly empty and were never analyzed any index looks equally good, and
 * PostgreSQL may keep a plan by tenant alone, which then reads all rows of the tenant until autovacuum runs. So a statement is prepared anew after
 * these numbers of uses, when the tables have grown.
 */
const preparedAnew = new Set([300, 3_000, 30_000, 300_000])

/** The named statements of one connection. */
export type Prepared = Map<string, PreparedStatement>

interface Step {
  readonly name: string
  readonly text: string
  readonly values: WireValue[]
  prepared: PreparedStatement | undefined
  columns: Columns | undefined
  readonly rows: object[]
}

interface RowDescription {
  readonly fields: readonly { readonly name: string; readonly dataTypeID: number }[]
}

export interface BatchResult {
  readonly rows: object[][]
  /** The last statement's command tag, e.g. `COMMIT`. */
  readonly tag: string
}

type Done = (error?: Error) => void

const noColumns: Columns = { names: [], parsers: [], blank: {} }

/**
 * Several statements in one network write, ended by one Sync: PostgreSQL runs them as one implicit transaction and skips
 * the rest after the first error. Against `BEGIN … COMMIT` through pg's pipeline mode this saves two statements, all but
 * one ReadyForQuery, and from the second use on the description of the rows.
 */
export class Batch {
  /** pg calls back by this name, and wraps the function with its read timeout. */
  callback: Done = () => {}
  readonly #prepared: Prepared
  readonly #steps: Step[]
  #at = 0
  #tag = ''
  #unreadable: Error | undefined

  /** Throws before anything is sent: on a value that cannot be encoded, and on one name with two texts. */
  constructor(statements: readonly Statement[], prepared: Prepared) {
    this.#prepared = prepared
    this.#steps = statements.map(({ name = '', text, values = [] }) => {
      const known = prepared.get(name)
      if (known && known.text !== text) throw new Error(`The statement name '${name}' is used for two different texts.`)
      return { name, text, values: values.map(encodeValue), prepared: undefined, columns: undefined, rows: [] }
    })
  }

  submit(connection: Connection): void {
    connection.stream.cork()
    for (const step of this.#steps) {
      let known = this.#prepared.get(step.name)
      if (!known || preparedAnew.has(++known.uses)) {
        if (step.name !== '') {
          // A failed earlier batch may or may not have prepared this statement. Closing an unknown statement is no error.
          connection.close({ type: 'S', name: step.name }, true)
          known = { text: step.text, columns: undefined, uses: known?.uses ?? 0 }
          this.#prepared.set(step.name, known)
          step.prepared = known
        }
        connection.parse({ name: step.name, text: step.text, types: [] }, true)
      }
      connection.bind({ portal: '', statement: step.name, values: step.values }, true)
      step.columns = known?.columns
      if (!step.columns) connection.describe({ type: 'P', name: '' }, true)
      connection.execute({}, true)
    }
    connection.sync()
    connection.stream.uncork()
  }

  handleRowDescription({ fields }: RowDescription): void {
    this.#steps[this.#at]!.columns = {
      names: fields.map((field) => field.name),
      parsers: fields.map((field) => parserFor(field.dataTypeID)),
      blank: Object.fromEntries(fields.map((field) => [field.name, null])),
    }
  }

  handleDataRow({ fields }: { readonly fields: readonly (string | null)[] }): void {
    const step = this.#steps[this.#at]!
    const { names, parsers, blank } = step.columns!
    const row: Record<string, unknown> = { ...blank }
    try {
      for (let i = 0; i < fields.length; i++) {
        const text = fields[i]
        if (text !== null) row[names[i]!] = parsers[i]!(text!)
      }
    } catch (error) {
      // Keep the error instead of throwing: this runs inside the socket's data event, where a throw would end the process.
      this.#unreadable ??= error as Error
    }
    step.rows.push(row)
  }

  handleCommandComplete({ text }: { readonly text: string }): void {
    const step = this.#steps[this.#at++]!
    this.#tag = text
    if (step.prepared) step.prepared.columns = step.columns ?? noColumns
  }

  handleEmptyQuery(): void {
    this.#at++
  }

  handleError(error: Error): void {
    for (const step of this.#steps) if (step.prepared) this.#prepared.delete(step.name)
    this.callback(error)
  }

  // Wait for ReadyForQuery: a deferred constraint fails after the last statement has completed, and only now is the commit done.
  handleReadyForQuery(): void {
    this.callback()
  }

  /** How many statements had completed; after an error this is the index of the refused one. */
  get completed(): number {
    return this.#at
  }

  /** The rows and the tag. Call it only after the callback came without an error. */
  result(): BatchResult {
    if (this.#unreadable) throw this.#unreadable
    return { rows: this.#steps.map((step) => step.rows), tag: this.#tag }
  }

  handleCopyInResponse({ stream }: Connection): void {
    stream.destroy(new Error('COPY is not a statement of a batch'))
  }

  handleCopyData(): void {}
}

type WireValue = string | Buffer | null

/** Encodes a JavaScript value for the wire. PostgreSQL infers the type from the statement; objects are sent as JSON. */
function encodeValue(value: unknown): WireValue {
  if (value === null || value === undefined) return null
  if (typeof value === 'string') return value
  if (typeof value !== 'object') return String(value)
  if (ArrayBuffer.isView(value)) return Buffer.from(value.buffer, value.byteOffset, value.byteLength)
  if (value instanceof Date) return value.toISOString()
  return Array.isArray(value) ? arrayLiteral(value) : JSON.stringify(value)
}

function arrayLiteral(values: readonly unknown[]): string {
  const items = values.map((item) => {
    if (typeof item === 'number') return String(item)
    if (Array.isArray(item)) return arrayLiteral(item)
    const value = encodeValue(item)
    if (value === null) return 'NULL'
    if (typeof value !== 'string') return `"\\\\x${value.toString('hex')}"`
    return `"${value.replace(/[\\"]/g, '\\$&')}"`
  })
  return `{${items.join(',')}}`
}

type Parser = (text: string) => unknown

/** `2026-01-02 03:04:05.678901+00` as `2026-01-02T03:04:05.678Z`. */
export function isoTime(text: string): string {
  // Converts the usual form by position, at a fraction of the cost of `Date`. Sessions run in UTC.
  if (text[10] === ' ' && text.endsWith('+00')) {
    const fraction = text.slice(20, -3)
    return `${text.slice(0, 10)}T${text.slice(11, 19)}.${fraction.slice(0, 3).padEnd(3, '0')}Z`
  }
  const time = new Date(text.replace(' ', 'T').replace(/([+-]\d\d)$/, '$1:00'))
  // `infinity`, and years that JavaScript does not know, keep PostgreSQL's text.
  return Number.isNaN(time.getTime()) ? text : time.toISOString()
}

const arrayOf =
  (oid: number, parse: Parser): Parser =>
  (text) =>
    (defaultParser(oid)(text) as (string | null)[]).map((item) => (item === null ? null : parse(item)))

const defaultParser = (oid: number): Parser => pg.types.getTypeParser(oid, 'text') as Parser

const asText: Parser = (text) => text

const textArray = 1009
const parsers = new Map<number, Parser>([
  [20, Number], // int8: counters and sequences of ours stay far below 2^53
  [1016, arrayOf(textArray, Number)],
  [1184, isoTime], // timestamptz
  [1185, arrayOf(textArray, isoTime)],
  [1082, asText], // date: a `Date` would move it to the machine's time zone
  [1114, asText], // timestamp without time zone
])

/** Parsers for our connections only: `pg.types.setTypeParser` would change them for every user of pg in this process. */
const parserFor = (oid: number): Parser => parsers.get(oid) ?? defaultParser(oid)
