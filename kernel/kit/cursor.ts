import { invalidField } from '../contracts/http-errors.ts'
import { type Page, pageOf } from '#contracts/paging'

/** The order of a list, which gives its rows their positions. */
interface Order {
  readonly order: Readonly<Record<string, string>>
  readonly newestFirst?: boolean
}

// Identifies the list of a cursor. Changing a list's order invalidates its cursors.
const nameOf = ({ order, newestFirst = false }: Order): string =>
  `${Object.keys(order).join()}${newestFirst ? '<' : '>'}`
const counted = '#'

export const unknownCursor = () =>
  invalidField('querystring/cursor', 'is no X-Next-Cursor of this list; begin again without it')

const encode = (name: string, place: readonly string[]): string =>
  Buffer.from(JSON.stringify([name, ...place])).toString('base64url')

function decode(cursor: string, name: string): string[] {
  const [found, ...place] = read(cursor)
  if (found !== name) throw unknownCursor()
  return place
}

function read(cursor: string): string[] {
  try {
    const parts: unknown = JSON.parse(Buffer.from(cursor, 'base64url').toString())
    // PostgreSQL text holds no NUL.
    if (Array.isArray(parts) && parts.every((part) => typeof part === 'string' && !part.includes('\0'))) return parts
  } catch {
    // The text is no JSON, so it is none of our cursors.
  }
  throw unknownCursor()
}

/** The cursor for the items after a position of a list. */
export const cursorOf = (list: Order, place: readonly string[]): string => encode(nameOf(list), place)

/** The position in a cursor of this list: one value per column of the order. */
export function placeIn(cursor: string, list: Order): string[] {
  const place = decode(cursor, nameOf(list))
  if (place.length !== Object.keys(list.order).length) throw unknownCursor()
  return place
}

/** The offset at which a page begins in a list that is computed as a whole. Its cursors are plain counts. */
export function offsetOf(page: Page): number {
  const { offset = 0, cursor } = pageOf(page)
  if (cursor === undefined) return offset
  const place = Number(decode(cursor, counted)[0])
  if (!Number.isSafeInteger(place) || place < 0) throw unknownCursor()
  return place
}

/** The cursor after a page of such a list. */
export function nextOf(page: Page, total: number): { next?: string } {
  const { limit = Infinity } = pageOf(page)
  const end = offsetOf(page) + limit
  return end < total ? { next: encode(counted, [String(end)]) } : {}
}
