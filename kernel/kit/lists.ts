import type { FastifyReply, FastifyRequest } from 'fastify'
import type { TSchema } from '@sinclair/typebox'
import { type Database, sqlState, type Statement } from '#contracts/database'
import { type Listing, mostCounted, type Page, pageHeaders, pageOf } from '#contracts/paging'
import { cursorOf, nextOf, offsetOf, placeIn, unknownCursor } from './cursor.ts'
import { stream } from '../http/streams.ts'

export { nextOf, offsetOf } from './cursor.ts'

/** A list in SQL. Its rows stand in one order, by columns that together are unique. */
export interface ListSql {
  readonly columns: string
  /** Of a list of one table: what is made of the rows that were chosen. What `columns` says is made of all that are sorted for it. */
  readonly shown?: string | undefined
  /** The tables that `shown` needs beside the chosen rows, joined to them. */
  readonly joined?: string
  /** The tables, with their joins. */
  readonly from: string
  /** What `from` is called, when it is no table. */
  readonly named?: string
  /** The tables that the condition needs, when those are fewer: the count is taken from them. */
  readonly counted?: string
  /** The condition, with `$1` and so on for `values`. */
  readonly where: string
  readonly values: readonly unknown[]
  /** The columns of the order and their types, by which a later read says behind which row it begins. */
  readonly order: Readonly<Record<string, 'text' | 'int' | 'bigint' | 'timestamptz'>>
  readonly newestFirst?: boolean
  /** A condition that no index answers is looked for among so many rows only, the first in the order, and the answer says so. */
  readonly among?: { readonly first: number; readonly where: string }
  /** The most rows of one read: so many that the largest of them are some megabytes, unless `bytes` says how large each is. */
  readonly atOnce: number
  /** How large a row is that `shown` makes, above 0, where rows differ too much: a read ends with the one by which it has a megabyte. */
  readonly bytes?: string
}

/** Where a read of weighed rows ends. */
const mostBytes = 1024 * 1024

/** Whose rows are listed: a tenant's, or those of a table without tenants. */
interface ListOf {
  readonly database: Database
  readonly tenantId: string | undefined
}

/** The place of a row in the order, as text: a time has more digits in PostgreSQL than in JavaScript. */
interface Placed {
  readonly place: readonly string[]
  /** Of a list that weighs its rows: how many were chosen for this read, of which these are the first. */
  readonly chosen?: number
  readonly before?: unknown
}

/**
 * Reads a list, or a page of it. The first read counts as well, and may go to an offset; each further one begins behind the row
 * that was read last, in a transaction of its own. Between two of them nothing is held, however slow the reader is. A cursor that
 * does not belong to this list is refused.
 */
export async function readList<Row extends object, T>(
  of: ListOf,
  asked: ListSql,
  page: Page,
  toItem: (row: Row) => T,
): Promise<Listing<T>> {
  const { limit: wanted = Infinity, offset = 0, cursor } = pageOf(page)
  const list = amongFirst(asked)
  const size = Math.min(wanted, list.atOnce)
  const from = cursor === undefined ? undefined : placeIn(cursor, list)
  const pages = [
    // One more tells whether there is more.
    placed(list, from, size + 1, offset),
    ...(wanted !== Infinity && (size < wanted || list.bytes !== undefined)
      ? [placed({ ...list, columns: '', shown: undefined }, from, 2, offset + wanted - 1)]
      : []),
  ]
  const answer = await askBoth<Row>(of, asked, pages).catch((error: unknown) => {
    // Class 22: a part of the cursor is no value of its column.
    throw from && sqlState(error)?.startsWith('22') ? unknownCursor() : error
  })
  const [[{ counted, complete }], read, ends = read.slice(size - 1)] = answer
  const rows = read.slice(0, size)
  const next = ends.length > 1 ? { next: cursorOf(list, ends[0]!.place) } : {}
  const total = Math.min(counted, mostCounted)
  const more = counted > mostCounted || !complete ? { more: true } : {}
  const items = rows.map((row) => toItem(withoutPlace(row)))
  const whole = { items, total, ...more, ...(wanted === Infinity ? {} : next) }
  const left = wanted - rows.length
  if (left === 0 || chosenOf(read) <= rows.length) return whole
  return { ...whole, rest: readOn(of, list, rows.at(-1)!.place, left, toItem) }
}

const chosenOf = (read: readonly Placed[]): number => read[0]?.chosen ?? read.length

interface Counted {
  /** One more than are counted when there are more. */
  readonly counted: number
  /** False: some rows were not searched. */
  readonly complete: boolean
}

type Answer<Row> = [[Counted], (Row & Placed)[], Placed[]]

/** The count of a list and its page in one round trip, unless both search many rows: if one finds nothing, the other does not search again. */
async function askBoth<Row extends object>(
  of: ListOf,
  list: ListSql,
  pages: readonly Statement[],
): Promise<Answer<Row>> {
  if (!list.among) return ask<Answer<Row>>(of, [countOf(list), ...pages])
  const [count] = await ask<[[Counted]]>(of, [countOf(list)])
  if (count[0].counted === 0) return [count, [], []]
  return [count, ...(await ask<[(Row & Placed)[], Placed[]]>(of, pages))]
}

// In the order of the list, which has it read the same index, and end where it has counted enough.
function countOf({ from, counted = from, where, among, values, order, newestFirst = false }: ListSql): Statement {
  const most = among ? among.first : mostCounted + 1
  const first = `SELECT ${among ? '*' : '1'} FROM ${counted} WHERE ${where} ORDER BY ${byOf(order, newestFirst)} LIMIT ${most}`
  const matches = among ? ` FILTER (WHERE ${among.where})` : ''
  const complete = among ? `count(*) < ${most}` : 'true'
  return { text: `SELECT count(*)${matches}::int AS counted, ${complete} AS complete FROM (${first}) first`, values }
}

/** The list of the first rows that are to be looked through, as a list of its own. */
function amongFirst(list: ListSql): ListSql {
  const { among, from, named = from, where, order, newestFirst = false } = list
  if (!among) return list
  const first = `SELECT * FROM ${from} WHERE ${where} ORDER BY ${byOf(order, newestFirst)} LIMIT ${among.first}`
  return { ...list, from: `(${first}) ${named}`, named, where: among.where }
}

async function* readOn<Row extends object, T>(
  of: ListOf,
  list: ListSql,
  from: Placed['place'],
  wanted: number,
  toItem: (row: Row) => T,
): AsyncGenerator<readonly T[]> {
  let place = from
  for (let left = wanted; left > 0;) {
    const size = Math.min(left, list.atOnce)
    const [rows] = await ask<[(Row & Placed)[]]>(of, [placed(list, place, size)])
    if (rows.length > 0) yield rows.map((row) => toItem(withoutPlace(row)))
    // Fewer than were chosen are not all that there were.
    if (rows.length < size && rows.length === chosenOf(rows)) return
    place = rows.at(-1)!.place
    left -= rows.length
  }
}

// Lists share connections that nothing else waits for.
function ask<Rows extends object[][]>({ database, tenantId }: ListOf, statements: readonly Statement[]): Promise<Rows> {
  const reads = database.as('reads')
  return tenantId === undefined ? reads.systemBatch(statements) : reads.batch(tenantId, statements)
}

// Not named, so that it is planned with its values and the filter at hand decides the index.
/** So many rows with their places, from an offset, of the whole list or of what is behind a place. */
function placed(
  { columns, shown, from, named = from, joined = '', bytes, where, values, order, newestFirst = false }: ListSql,
  behind: Placed['place'] | undefined,
  limit: number,
  offset = 0,
): Statement {
  const keys = Object.keys(order)
  const more = behind ? [...behind, limit, offset] : [limit, offset]
  const mark = (i: number): string => `$${values.length + 1 + i}`
  const marks = Object.values(order).map((type, i) => `${mark(i)}::${type}`)
  const condition = behind
    ? `${where} AND (${keys.join(', ')}) ${newestFirst ? '<' : '>'} (${marks.join(', ')})`
    : where
  const place = `ARRAY[${keys.map((key) => `${key}::text`).join(', ')}] AS place`
  const by = byOf(order, newestFirst)
  const chosen = `SELECT ${columns}${columns && ','} ${place} FROM ${from} WHERE ${condition} ORDER BY ${by}
    LIMIT ${mark(more.length - 2)} OFFSET ${mark(more.length - 1)}`
  return { text: shown === undefined ? chosen : shownOf(), values: [...values, ...more] }

  function shownOf(): string {
    const made = `FROM (${chosen}) ${named} ${joined}`
    if (bytes === undefined) return `SELECT ${shown}, place ${made} ORDER BY ${by}`
    // Without the row's own size, so that the first one is there however large it is.
    const before = `sum(${bytes}) OVER (ORDER BY ${by} ROWS UNBOUNDED PRECEDING) - ${bytes} AS before`
    return `SELECT * FROM (SELECT ${shown}, place, count(*) OVER ()::int AS chosen, ${before} ${made}) weighed
      WHERE before < ${mostBytes} ORDER BY before`
  }
}

const byOf = (order: ListSql['order'], newestFirst: boolean): string =>
  Object.keys(order)
    .map((key) => `${key} ${newestFirst ? 'DESC' : 'ASC'}`)
    .join(', ')

function withoutPlace<Row extends object>(row: Row & Placed): Row {
  const { place: _, chosen: __, before: ___, ...own } = row
  return own as unknown as Row
}

/** A list of what a process has in memory anyway: pages and reads of it are cut without copying more than references. */
export function listOf<Kept, T>(
  all: readonly Kept[],
  page: Page,
  atOnce: number,
  toItem: (kept: Kept) => T,
): Listing<T> {
  const { limit = all.length } = pageOf(page)
  const offset = offsetOf(page)
  const wanted = all.slice(offset, offset + limit)
  const part = (from: number): T[] => wanted.slice(from, from + atOnce).map(toItem)
  const rest = async function* () {
    for (let from = atOnce; from < wanted.length; from += atOnce) yield part(from)
  }
  return {
    items: part(0),
    total: all.length,
    ...nextOf(page, all.length),
    ...(wanted.length > atOnce ? { rest: rest() } : {}),
  }
}

interface ItemsAnswer<T, Shown> {
  /** The schema of an item. */
  readonly item: TSchema
  /** The document around the items, which are the last thing in it; the bare array by default. */
  readonly document?: (items: readonly Shown[]) => unknown
  /** What is answered of an item, when that is another thing than was read. */
  readonly shown?: (item: T) => Shown
}

interface ListAnswer<T, Shown> extends ItemsAnswer<T, Shown> {
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
  void reply.headers({ ...pageHeaders(request.url, page, list), ...headers })
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

/** A JSON array in parts, each made when the one before has left: a long one delays nothing else. */
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
