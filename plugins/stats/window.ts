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
/** Chooses the smallest bucket for each window that keeps a chart readable. */
const fitting: readonly (readonly [window: number, bucket: BucketName])[] = [
  [hour, '1m'],
  [6 * hour, '5m'],
  [day, '15m'],
  [7 * day, '1h'],
  [longest, '1d'],
]
/** The minutes of a day fit. An answer with more buckets is too large for a chart. */
const mostBuckets = 1_500

const invalid = (field: string, message: string): AppError =>
  invalidRequest({
    message: `${field} ${message}`,
    detail: { issues: [{ path: `querystring/${field}`, message }] },
  })

/** A range of time. `end` is exclusive. */
export interface Range {
  readonly window: string
  readonly start: Date
  readonly end: Date
}

const duration = Duration('24h')

/** The range of length `window` that ends at `end`. A window of more than 30 days is cut to 30 days. Specification 8. */
export function rangeOf(window: string, end: Date): Range {
  if (!Value.Check(duration, window)) throw invalid('window', 'must be a duration such as 5m, 24h or 7d')
  const ms = Value.Decode(duration, window)
  if (ms === 0) throw invalid('window', 'must be longer than nothing')
  const used = Math.min(ms, longest)
  return { window: used === ms ? window : '720h', start: new Date(end.getTime() - used), end }
}

/** The range of a series, divided into buckets. Each bucket begins at a whole multiple of the bucket size, in UTC. */
export interface Grid extends Range {
  readonly bucket: BucketName
  readonly size: number
  /** The start of each bucket that overlaps the range, oldest first, in milliseconds since the epoch. */
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
