import { Value } from '@sinclair/typebox/value'
import { type AppError, Duration, invalidRequest } from '#kernel'
import type { BucketName, SeriesQuery } from '#contracts/stats'

const minute = 60_000
const hour = 60 * minute
const day = 24 * hour
const longest = 30 * day
const sizes: Readonly<Record<BucketName, number>> = {
  '1m': minute,
  '5m': 5 * minute,
  '15m': 15 * minute,
  '1h': hour,
  '6h': 6 * hour,
  '1d': day,
}
/** Each window gets the smallest bucket that leaves a chart readable. */
const fitting: readonly (readonly [window: number, bucket: BucketName])[] = [
  [hour, '1m'],
  [6 * hour, '5m'],
  [day, '15m'],
  [7 * day, '1h'],
  [longest, '1d'],
]
/** A day in minutes; an answer of more is no chart. */
const mostBuckets = 1_500

const invalid = (field: string, message: string): AppError =>
  invalidRequest({
    message: `${field} ${message}`,
    detail: { issues: [{ path: `querystring/${field}`, message }] },
  })

/** A stretch of time, `end` not included. */
export interface Range {
  readonly window: string
  readonly start: Date
  readonly end: Date
}

const duration = Duration('24h')

/** The window up to `end`; a longer one than 30 days is cut to that. Specification 8. */
export function rangeOf(window: string, end: Date): Range {
  if (!Value.Check(duration, window)) throw invalid('window', 'must be a duration such as 5m, 24h or 7d')
  const ms = Value.Decode(duration, window)
  if (ms === 0) throw invalid('window', 'must be longer than nothing')
  const used = Math.min(ms, longest)
  return { window: used === ms ? window : '720h', start: new Date(end.getTime() - used), end }
}

/** The time that a series covers, cut where its buckets meet: whole multiples of their size in UTC. */
export interface Grid extends Range {
  readonly bucket: BucketName
  readonly size: number
  /** Start of each bucket that holds some of the range, oldest first, in milliseconds. */
  readonly starts: readonly number[]
}

export function gridOf({ window = '24h', bucket }: SeriesQuery, now: Date): Grid {
  const range = rangeOf(window, now)
  const [start, end] = [range.start.getTime(), range.end.getTime()]
  const name = bucket ?? fitting.find(([upTo]) => end - start <= upTo)![1]
  const size = sizes[name]
  const first = Math.floor(start / size) * size
  const count = Math.ceil((end - first) / size)
  if (count > mostBuckets) throw invalid('bucket', `makes ${count} of this window; at most ${mostBuckets} are answered`)
  return { ...range, bucket: name, size, starts: Array.from({ length: count }, (_, i) => first + i * size) }
}
