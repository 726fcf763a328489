import { Type } from '@sinclair/typebox'

/** Query of every paged list. Without `limit` the whole list is returned. Specification 4.1. */
export const PageQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: 200,
      description: 'Absent: the whole list, streamed while it is read. One that breaks off is not closed by `]`.',
    }),
  ),
  offset: Type.Optional(
    Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Used with `limit`.' }),
  ),
})

export interface Page {
  readonly limit?: number
  readonly offset?: number
}

/** What a list answers: its items in order, or the first of them and a way to read on. */
export interface Listing<T> {
  readonly items: readonly T[]
  /** How many there are, on all pages. */
  readonly total: number
  /** What of the list, or of the page that was asked for, is behind `items`: a bounded read at a time, each when it is pulled. */
  readonly rest?: AsyncIterable<readonly T[]>
}

/** The page that a query asks for. An offset without a limit is ignored: the list is whole then. */
export const pageOf = ({ limit, offset = 0 }: Page): Page => (limit === undefined ? {} : { limit, offset })

/** The headers of a list: `X-Total-Count`, and for a page the `Link` to its neighbours, which keeps every other query parameter. */
export function pageHeaders(url: string, { limit, offset = 0 }: Page, total: number): Record<string, string> {
  const count = { 'x-total-count': String(total) }
  if (limit === undefined) return count
  const link = (start: number, rel: string): string => {
    const [path = '', query] = url.split('?', 2)
    const params = new URLSearchParams(query)
    params.set('limit', String(limit))
    params.set('offset', String(start))
    return `<${path}?${params.toString()}>; rel="${rel}"`
  }
  const links = [
    ...(offset > 0 ? [link(Math.max(0, offset - limit), 'prev')] : []),
    ...(offset + limit < total ? [link(offset + limit, 'next')] : []),
  ]
  return links.length > 0 ? { ...count, link: links.join(', ') } : count
}
