import type { FastifyReply, FastifyRequest } from 'fastify'
import type { TSchema } from '@sinclair/typebox'
import type { Database, Statement } from '#contracts/database'
import { type Listing, type Page, pageHeaders, pageOf } from '#contracts/paging'
import { stream } from '../http/streams.ts'

/** A list in SQL. Its rows stand in one order, by columns that together are unique. */
export interface ListSql {
  readonly columns: string
  /** Of a list of one table: what is made of the rows that were chosen. What `columns` says is made of all that are sorted for it. */
  readonly shown?: string
  /** The tables, with their joins. */
  readonly from: string
  /** The tables that the condition needs, when those are fewer: the count is taken from them. */
  readonly counted?: string
  /** The condition, with `$1` and so on for `values`. */
  readonly where: string
  readonly values: readonly unknown[]
  /** The columns of the order and their types, by which a later read says behind which row it begins. */
  readonly order: Readonly<Record<string, 'text' | 'int' | 'timestamptz'>>
  readonly newestFirst?: boolean
  /** The most rows of one read: so many that the largest of them are some megabytes. */
  readonly atOnce: number
}

/** Whose rows are listed: a tenant's, or those of a table that is nobody's. */
export interface ListOf {
  readonly database: Database
  readonly tenantId: string | undefined
}

/** The place of a row in the order, as text: a time has more digits in PostgreSQL than in JavaScript. */
interface Placed {
  readonly place: readonly string[]
}

/**
 * Reads a list, or a page of it. The first read counts as well, and may go to an offset; each further one begins behind the row
 * that was read last, in a transaction of its own. Between two of them nothing is held, however slow the reader is.
 */
export async function readList<Row extends object, T>(
  of: ListOf,
  list: ListSql,
  page: Page,
  toItem: (row: Row) => T,
): Promise<Listing<T>> {
  const { limit: wanted = Infinity, offset = 0 } = pageOf(page)
  const size = Math.min(wanted, list.atOnce)
  const { counted = list.from, where, values } = list
  const count = { text: `SELECT count(*)::int AS total FROM ${counted} WHERE ${where}`, values }
  const first = statement(list, where, [size, offset], (next) => `LIMIT $${next} OFFSET $${next + 1}`)
  const [[{ total }], rows] = await ask<[[{ total: number }], (Row & Placed)[]]>(of, [count, first])
  const items = rows.map((row) => toItem(withoutPlace(row)))
  const last = rows.at(-1)
  if (!last || rows.length < size || size === wanted || offset + size >= total) return { items, total }
  return { items, total, rest: readOn(of, list, last.place, wanted - size, toItem) }
}

async function* readOn<Row extends object, T>(
  of: ListOf,
  list: ListSql,
  from: Placed['place'],
  wanted: number,
  toItem: (row: Row) => T,
): AsyncGenerator<readonly T[]> {
  const columns = Object.entries(list.order)
  const next = list.values.length + 1
  const marks = columns.map(([, type], i) => `$${next + i}::${type}`)
  const behind = `(${Object.keys(list.order).join(', ')}) ${list.newestFirst ? '<' : '>'} (${marks.join(', ')})`
  let place = from
  for (let left = wanted; left > 0; left -= list.atOnce) {
    const size = Math.min(left, list.atOnce)
    const [rows] = await ask<[(Row & Placed)[]]>(of, [
      statement(list, `${list.where} AND ${behind}`, [...place, size], (n) => `LIMIT $${n + columns.length}`),
    ])
    if (rows.length > 0) yield rows.map((row) => toItem(withoutPlace(row)))
    if (rows.length < size) return
    place = rows.at(-1)!.place
  }
}

// Lists share connections that nothing else waits for.
function ask<Rows extends object[][]>({ database, tenantId }: ListOf, statements: readonly Statement[]): Promise<Rows> {
  const reads = database.as('reads')
  return tenantId === undefined ? reads.systemBatch(statements) : reads.batch(tenantId, statements)
}

// Not named, so that it is planned with its values and the filter at hand decides the index.
function statement(
  { columns, shown, from, values, order, newestFirst = false }: ListSql,
  where: string,
  more: readonly unknown[],
  limits: (next: number) => string,
): Statement {
  const keys = Object.keys(order)
  const place = `ARRAY[${keys.map((key) => `${key}::text`).join(', ')}] AS place`
  const by = keys.map((key) => `${key} ${newestFirst ? 'DESC' : 'ASC'}`).join(', ')
  const chosen = `SELECT ${columns}, ${place} FROM ${from} WHERE ${where} ORDER BY ${by} ${limits(values.length + 1)}`
  const text = shown === undefined ? chosen : `SELECT ${shown}, place FROM (${chosen}) ${from} ORDER BY ${by}`
  return { text, values: [...values, ...more] }
}

function withoutPlace<Row extends object>(row: Row & Placed): Row {
  const { place: _, ...own } = row
  return own as unknown as Row
}

/** A list of what a process has in memory anyway: pages and reads of it are cut without copying more than references. */
export function listOf<Kept, T>(
  all: readonly Kept[],
  page: Page,
  atOnce: number,
  toItem: (kept: Kept) => T,
): Listing<T> {
  const { limit = all.length, offset = 0 } = pageOf(page)
  const wanted = all.slice(offset, offset + limit)
  const part = (from: number): T[] => wanted.slice(from, from + atOnce).map(toItem)
  const rest = async function* () {
    for (let from = atOnce; from < wanted.length; from += atOnce) yield part(from)
  }
  return { items: part(0), total: all.length, ...(wanted.length > atOnce ? { rest: rest() } : {}) }
}

export interface ItemsAnswer<T, Shown> {
  /** The schema of an item. */
  readonly item: TSchema
  /** The document around the items, which are the last thing in it; the bare array unless given. */
  readonly document?: (items: readonly Shown[]) => unknown
  /** What is answered of an item, when that is another thing than was read. */
  readonly shown?: (item: T) => Shown
}

export interface ListAnswer<T, Shown> extends ItemsAnswer<T, Shown> {
  readonly page: Page
  readonly headers?: Readonly<Record<string, string>>
}

/** Answers with a list, or a page of it, and how many there are. */
export function sendList<T, Shown = T>(
  request: FastifyRequest,
  reply: FastifyReply,
  list: Listing<T>,
  { page, headers = {}, ...answer }: ListAnswer<T, Shown>,
): Promise<FastifyReply> {
  void reply.headers({ ...pageHeaders(request.url, page, list.total), ...headers })
  return sendItems(request, reply, list, answer)
}

/**
 * Answers with items. What one read has found is answered as a whole; more is streamed as one JSON document, so that neither
 * this process nor the database holds more than a read of it. A failure on the way cuts the connection: no client takes what
 * it has got for the whole.
 */
export async function sendItems<T, Shown = T>(
  request: FastifyRequest,
  reply: FastifyReply,
  { items, rest }: Pick<Listing<T>, 'items' | 'rest'>,
  { item, document = (all) => all, shown = (one) => one as unknown as Shown }: ItemsAnswer<T, Shown>,
): Promise<FastifyReply> {
  if (!rest) return reply.send(document(items.map(shown)))
  // Compiled once: Fastify remembers it by the schema itself.
  const serialize = reply.compileSerializationSchema(item as Record<string, unknown>) as (one: Shown) => string
  const textOf = (one: T): string => serialize(shown(one))
  const empty = JSON.stringify(document([]))
  const end = empty.lastIndexOf(']')
  await stream(request, reply, { contentType: 'application/json; charset=utf-8' }, async function* () {
    yield empty.slice(0, end) + items.map(textOf).join(',')
    for await (const more of rest) yield more.map((one) => `,${textOf(one)}`).join('')
    yield empty.slice(end)
  })
  return reply
}

/** Characters of one part of a document. */
const partChars = 64 * 1024

/** A JSON array in parts, each made when the one before has left: a long one holds up nobody. */
export async function* arrayParts<T>(items: readonly T[], shown: (item: T) => unknown = (item) => item) {
  let text = '['
  for (const [i, item] of items.entries()) {
    text += `${i === 0 ? '' : ','}${JSON.stringify(shown(item))}`
    if (text.length < partChars) continue
    yield Buffer.from(text)
    text = ''
  }
  yield Buffer.from(`${text}]`)
}
