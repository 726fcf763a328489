import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'

/** A count over a time range. The route documents its meaning. */
const count = (description?: string) => Type.Integer({ minimum: 0, ...(description ? { description } : {}) })

const bucketNames = ['1m', '5m', '15m', '1h', '6h', '1d'] as const
export type BucketName = (typeof bucketNames)[number]
const BucketSize = Type.Unsafe<BucketName>({ type: 'string', enum: [...bucketNames] })

/** The query of every route with figures. Specification 4.15. */
export const WindowQuery = Type.Object({
  window: Type.Optional(
    Type.String({
      maxLength: 40,
      default: '24h',
      description:
        'How far back: a duration such as `5m`, `24h` or `7d`; at most 30 days; a longer one is cut to that.',
    }),
  ),
})
export const SeriesQuery = Type.Object({
  ...WindowQuery.properties,
  bucket: Type.Optional(
    Type.Unsafe<BucketName>({ ...BucketSize, description: 'Length of a bucket; by default it suits the window.' }),
  ),
})
export type SeriesQuery = Static<typeof SeriesQuery>

/** The time range of the figures: `start` is included, `end` is not. */
export const range = {
  window: Type.String({ description: 'The window that was used.' }),
  start: Type.String({ format: 'date-time' }),
  end: Type.String({ format: 'date-time', description: 'Not included: the time of the answer.' }),
}

export const RunCounts = Type.Object(
  { total: count(), ok: count(), error: count(), cancelled: count(), interrupted: count() },
  { description: 'Runs that finished in this time, by how they ended.' },
)
export const metered = {
  runs: RunCounts,
  inputTokens: count(),
  outputTokens: count(),
  cachedTokens: count('Part of the input tokens.'),
  toolCalls: count(),
  costCents: Type.Number({
    minimum: 0,
    description: 'To a millionth of a cent. Runs whose cost is unknown add nothing.',
  }),
  unpricedRuns: count('Runs whose cost is unknown: a price is missing for one of their models.'),
}
export const amounts = { sandboxSeconds: count(), ingressRequests: count('Accepted public chat requests.') }

export const Bucket = Type.Object({
  start: Type.String({ format: 'date-time' }),
  end: Type.String({ format: 'date-time' }),
  ...metered,
  failedRuns: count('Ended as `error` or `interrupted`.'),
  ...amounts,
})
export type Bucket = Static<typeof Bucket>

export const Timeseries = Type.Object({
  ...range,
  bucket: BucketSize,
  buckets: Type.Array(Bucket, {
    description: 'On one grid in UTC, including empty ones; the first and the last may reach beyond the window.',
  }),
})
export type Timeseries = Static<typeof Timeseries>

/** Figures of one publication. `sandboxSeconds` and `failedRuns` are always 0 here. Specification 4.4. */
export const PublishedMetrics = Type.Object({
  ...range,
  publishedId: Type.String(),
  profile: Type.String(),
  slug: Type.String(),
  requests: Type.Object(
    { total: count(), ok: count(), error: count(), lost: count(), open: count('Still under way.') },
    { description: 'Accepted chat requests by outcome.' },
  ),
  conversations: Type.Object({ active: count('With a request in this time.'), started: count('Begun in this time.') }),
  ...metered,
  failedRuns: count('Always 0 here: see `runs` and `requests`.'),
  sandboxSeconds: count('Always 0 here.'),
  ingressRequests: count('The same as `requests.total`.'),
  bucket: BucketSize,
  buckets: Timeseries.properties.buckets,
})
export type PublishedMetrics = Static<typeof PublishedMetrics>

/** Figures for the plugin that publishes agents. */
export interface PublishedStats {
  /** Throws AppError 400 for an invalid window or bucket. */
  metrics(
    tenantId: string,
    agent: { readonly id: string; readonly profile: string; readonly slug: string },
    query: SeriesQuery,
  ): Promise<PublishedMetrics>
}
export const PublishedStats = capability<PublishedStats>('conductor.published-stats')
