import { Type } from '@sinclair/typebox'

/** The query of every paged list. Without `limit` the whole list is returned. Specification 4.1. */
export const PageQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: 200,
      description: 'Absent: the whole list, streamed while it is read. One that breaks off is not closed by `]`.',
    }),
  ),
  offset: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      description: 'Used with `limit`. Skipped items are read, too: for large offsets use `cursor`.',
    }),
  ),
  cursor: Type.Optional(
    Type.String({
      maxLength: 2_000,
      description:
        'Used with `limit`, instead of `offset`: the `X-Next-Cursor` of the page before. Every page costs what the first one does.',
    }),
  ),
})

/** A list counts its items exactly up to this number. Counting more would take as long as reading them. */
export const mostCounted = 10_000

export interface Page {
  readonly limit?: number
  readonly offset?: number
  readonly cursor?: string
}

/** The answer of a list: its items in order, or the first of them and a way to read on. */
export interface Listing<T> {
  readonly items: readonly T[]
  /** The number of items on all pages, up to `mostCounted`. */
  readonly total: number
  /** True when there are more than `total` items. */
  readonly more?: boolean
  /** The cursor of the next page. Absent on the last page, and when nothing identifies the position of an item. */
  readonly next?: string
  /** The remaining items of the list or page after `items`, in bounded reads, each made when it is pulled. */
  readonly rest?: AsyncIterable<readonly T[]>
}

/** The page that a query requests. Without a limit it is the whole list. A cursor already says where the page begins, so the offset is ignored. */
export const pageOf = ({ limit, offset = 0, cursor }: Page): Page =>
  limit === undefined ? {} : cursor === undefined ? { limit, offset } : { limit, offset: 0, cursor }

/**
 * The headers of a list: `X-Total-Count`, with `X-Total-Count-Exact: false` when there are more than that, and for a page
 * `X-Next-Cursor` and the `Link` to its neighbours, which keeps every other query parameter.
 */
export function pageHeaders(
  url: string,
  page: Page,
  { total, more = false, next }: Pick<Listing<unknown>, 'total' | 'more' | 'next'>,
): Record<string, string> {
  const count = { 'x-total-count': String(total), ...(more ? { 'x-total-count-exact': 'false' } : {}) }
  const { limit, offset = 0, cursor } = pageOf(page)
  if (limit === undefined) return count
  const link = (place: Readonly<Record<string, string>>, rel: string): string => {
    const [path = '', query] = url.split('?', 2)
    const params = new URLSearchParams(query)
    for (const name of ['offset', 'cursor']) if (!(name in place)) params.delete(name)
    for (const [name, value] of Object.entries({ limit: String(limit), ...place })) params.set(name, value)
    return `<${path}?${params.toString()}>; rel="${rel}"`
  }
  // A client that pages by offset continues by offset while more items are known to exist.
  const byOffset = cursor === undefined && offset + limit < total
  const behind = byOffset ? { offset: String(offset + limit) } : next === undefined ? undefined : { cursor: next }
  const links = [
    ...(offset > 0 ? [link({ offset: String(Math.max(0, offset - limit)) }, 'prev')] : []),
    ...(behind ? [link(behind, 'next')] : []),
  ]
  return {
    ...count,
    ...(next === undefined ? {} : { 'x-next-cursor': next }),
    ...(links.length > 0 ? { link: links.join(', ') } : {}),
  }
}
