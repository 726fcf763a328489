import pg from 'pg'

export type WireValue = string | Buffer | null

/** What a JavaScript value is on the wire; PostgreSQL infers the type from the statement. Objects are JSON. */
export function encodeValue(value: unknown): WireValue {
  if (value === null || value === undefined) return null
  if (typeof value === 'string') return value
  if (typeof value !== 'object') return String(value)
  if (ArrayBuffer.isView(value)) return Buffer.from(value.buffer, value.byteOffset, value.byteLength)
  if (value instanceof Date) return value.toISOString()
  return Array.isArray(value) ? arrayLiteral(value) : JSON.stringify(value)
}

function arrayLiteral(values: readonly unknown[]): string {
  const items = values.map((item) => {
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
  // The usual form by position, at a fraction of what `Date` costs; sessions run in UTC.
  if (text[10] === ' ' && text.endsWith('+00')) {
    const fraction = text.slice(20, -3)
    return `${text.slice(0, 10)}T${text.slice(11, 19)}.${fraction.slice(0, 3).padEnd(3, '0')}Z`
  }
  const time = new Date(text.replace(' ', 'T').replace(/([+-]\d\d)$/, '$1:00'))
  // `infinity`, and years that JavaScript does not know, stay what PostgreSQL calls them.
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

/** Types of our rows, for our connections alone: `pg.types.setTypeParser` would change those of every user of pg here. */
export const parserFor = (oid: number): Parser => parsers.get(oid) ?? defaultParser(oid)
