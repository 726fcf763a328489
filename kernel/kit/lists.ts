import type { FastifyReply, FastifyRequest } from 'fastify'
import type { TSchema } from '@sinclair/typebox'
import { type Database, sqlState, type Statement } from '#contracts/database'
import { type Listing, mostCounted, type Page, pageHeaders, pageOf } from '#contracts/paging'
import { cursorOf, nextOf, offsetOf, placeIn, unknownCursor } from './cursor.ts'
import type { App } from '../http/app.ts'
import { stream } from '../http/streams.ts'

export { nextOf, offsetOf } from './cursor.ts'

/** A list in SQL. Its rows have one order, by columns that are unique together. */
export interface ListSql {
  readonly columns: string
  /** For a list of one table: columns that are computed only for the chosen rows. `columns` are computed for all rows that are sorted. */
  readonly shown?: string | undefined
  /** Tables that `shown` needs in addition, joined to the chosen rows. */
  readonly joined?: string
  /** The tables, with their joins. */
  readonly from: string
  /** The alias of `from`, when it is no table. */
  readonly named?: string
  /** The tables that the condition needs, when those are fewer than `from`. The count uses them. */
  readonly counted?: string
  /** The condition, with `$1` and so on for `values`. */
  readonly where: string
  readonly values: readonly unknown[]
  /** The columns of the order with their types. A later read uses them to continue after a row. */
  readonly order: Readonly<Record<string, 'text' | 'int' | 'bigint' | 'timestamptz'>>
  readonly newestFirst?: boolean
  /** A condition without an index is evaluated only for this many first rows of the order, and the answer says so. */
  readonly among?: { readonly first: number; readonly where: string }
  /** The most rows of one read, such that the largest rows total some megabytes, unless `bytes` gives the size of each row. */
  readonly atOnce: number
  /** The size of a row that `shown` makes, above 0, where sizes vary much: a read ends with the row that reaches one megabyte. */
  readonly bytes?: string
}

/** The most bytes of a read of weighed rows. */
const mostBytes = 1024 * 1024

/** Whose rows are listed: a tenant's, or those of a table without tenants. */
interface ListOf {
  readonly database: Database
  readonly tenantId: string | undefined
  /** `figures`: a read may go through all rows and find none. */
  readonly work?: 'reads' | 'figures'
}

/** A row's position in the order, as text, because PostgreSQL's times have more digits than JavaScript's. */
interface Placed {
  readonly place: readonly string[]
  /** For a list that weighs its rows: how many rows were chosen for this read. These rows are the first of them. */
  readonly chosen?: number
  readonly before?: unknown
}

/**
 * Reads a list, or a page of it. The first read also counts, and may skip to an offset; each later read begins after the last row, in its own
 * transaction. Between two reads nothing is held, however slow the reader is. A cursor of another list is refused.
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
    // One additional row shows whether there is more.
    placed(list, from, size + 1, offset),
    ...(wanted !== Infinity && (size < wanted || list.bytes !== undefined)
      ? [placed({ ...list, columns: '', shown: undefined }, from, 2, offset + wanted - 1)]
      : []),
  ]
  const answer = await askBoth<Row>(of, asked, pages).catch((error: unknown) => {
    // Class 22: a part of the cursor is not a valid value of its column.
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
  /** The count. It is one more than the most counted when there are more. */
  readonly counted: number
  /** False: some rows were not searched. */
  readonly complete: boolean
}

type Answer<Row> = [[Counted], (Row & Placed)[], Placed[]]

/** Counts a list and reads its page in one round trip, unless both search many rows: if the first finds nothing, the second search is skipped. */
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

// Counts in the order of the list, so that it reads the same index and stops when it has counted enough.
function countOf({ from, counted = from, where, among, values, order, newestFirst = false }: ListSql): Statement {
  const most = among ? among.first : mostCounted + 1
  const found = among ? `${among.where} AS matches` : '1'
  const first = `SELECT ${found} FROM ${counted} WHERE ${where} ORDER BY ${byOf(order, newestFirst)} LIMIT ${most}`
  const matches = among ? ' FILTER (WHERE matches)' : ''
  const complete = among ? `count(*) < ${most}` : 'true'
  return { text: `SELECT count(*)${matches}::int AS counted, ${complete} AS complete FROM (${first}) first`, values }
}

/** The list of the first rows that are searched, as a list of its own. */
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
    // Fewer rows than were chosen mean that more rows follow.
    if (rows.length < size && rows.length === chosenOf(rows)) return
    place = rows.at(-1)!.place
    left -= rows.length
  }
}

// Lists share connections that no other work waits for.
function ask<Rows extends object[][]>(
  { database, tenantId, work = 'reads' }: ListOf,
  statements: readonly Statement[],
): Promise<Rows> {
  const reads = database.as(work)
  return tenantId === undefined ? reads.systemBatch(statements) : reads.batch(tenantId, statements)
}

// Unnamed, so that PostgreSQL plans it with its values and the actual filter decides the index.
/** The given number of rows with their positions, from an offset, of the whole list or of the part after a position. */
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
    // Excludes the row's own size, so that the first row is read however large it is.
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

/** A list of values in process memory. Its pages and reads copy only references. */
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
  /** The document around the items, which come last in it. Absent: the bare array. */
  readonly document?: (items: readonly Shown[]) => unknown
  /** Converts an item for the answer, when that differs from what was read. */
  readonly shown?: (item: T) => Shown
}

interface ListAnswer<T, Shown> extends ItemsAnswer<T, Shown> {
  readonly page: Page
  readonly headers?: Readonly<Record<string, string>>
}

/** Answers with a list, or a page of it, and the number of items. */
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
 * Answers with items. The result of a single read is sent as a whole; more is streamed as one JSON document, so that neither this process nor the
 * database holds more than one read. A failure on the way cuts the connection, so that no client takes a part for the whole.
 */
export async function sendItems<T, Shown = T>(
  request: FastifyRequest,
  reply: FastifyReply,
  { items, rest }: Pick<Listing<T>, 'items' | 'rest'>,
  { item, document = (all) => all, shown = (one) => one as unknown as Shown }: ItemsAnswer<T, Shown>,
): Promise<FastifyReply> {
  if (!rest) return reply.send(document(items.map(shown)))
  // Compiled once, because Fastify caches by the schema object.
  const serialize = reply.compileSerializationSchema(item as Record<string, unknown>) as (one: Shown) => string
  const textOf = (one: T): string => serialize(shown(one))
  const empty = JSON.stringify(document([]))
  const end = empty.lastIndexOf(']')
  const { server } = request
  const turn = server.hasDecorator(turnKey) ? server.getDecorator<TurnOfPart>(turnKey) : undefined
  await stream(request, reply, { contentType: 'application/json; charset=utf-8' }, async function* () {
    let text = empty.slice(0, end) + items.map(textOf).join(',')
    yield text
    await turn?.(request, text.length)
    for await (const more of rest) {
      text = more.map((one) => `,${textOf(one)}`).join('')
      yield text
      // Nothing is held meanwhile. The next part is read from the database when it is its turn.
      await turn?.(request, text.length)
    }
    yield empty.slice(end)
  })
  return reply
}

/** Waits for the turn of what follows in a long list, as long as its tenant has to wait for the part of so many characters that was sent. */
type TurnOfPart = (request: FastifyRequest, chars: number) => Promise<void>
const turnKey = Symbol('agent-orc.turn-of-part')
/** The parts of long lists of a scope take turns: a list of thousands of parts is one request, and is not to occupy the process. */
export const paceLists = (app: App, turn: TurnOfPart): void => void app.decorate(turnKey, turn)

/** Characters of one part of a document. */
const partChars = 64 * 1024

/** A JSON array in parts. Each part is made after the previous one was sent, so that a long array delays nothing else. */
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
