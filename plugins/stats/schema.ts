import { type Static, Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'
import { amounts, metered, range, RunCounts, WindowQuery } from '#contracts/stats'

const count = (description?: string) => Type.Integer({ minimum: 0, ...(description ? { description } : {}) })
const failedRuns = count('Ended as `error` or `interrupted`.')

export const Overview = Type.Object({
  ...range,
  ...metered,
  runs: Type.Object(
    { ...RunCounts.properties, running: count('Right now.'), queued: count('Right now.') },
    { description: RunCounts.description! },
  ),
  failedRuns,
  successRate: Type.Union([Type.Number({ minimum: 0, maximum: 1 }), Type.Null()], {
    description: 'The fraction of completed runs that is `ok`; null if there were none. Cancelled ones are left out.',
  }),
  durationMs: Type.Union([Type.Object({ p50: count(), p95: count() }), Type.Null()], {
    description: 'From start to end of finished runs; for many runs accurate to 2.5 %.',
  }),
  ...amounts,
  sessions: Type.Object(
    {
      total: count(),
      exact: Type.Boolean({ description: 'False: there are more, and the newest 10,000 were counted.' }),
      idle: count(),
      running: count(),
      errored: count(),
      shutdown: count(),
    },
    { description: 'The sessions created in this time, by current status.' },
  ),
  profiles: count('Right now.'),
  publishedAgents: count('Right now.'),
})
export type Overview = Static<typeof Overview>

const sorts = ['last_activity_desc', 'tokens_desc', 'failures_desc', 'runs_desc', 'sessions_desc', 'name_asc'] as const
export type AgentSort = (typeof sorts)[number]

export const AgentsQuery = Type.Composite([
  WindowQuery,
  PageQuery,
  Type.Object({
    sort: Type.Optional(
      Type.Unsafe<AgentSort>({
        type: 'string',
        enum: [...sorts],
        default: 'last_activity_desc',
        description: 'Equal ones follow by name.',
      }),
    ),
  }),
])

export const AgentStats = Type.Object({
  profile: Type.String(),
  deleted: Type.Boolean({ description: 'The profile was deleted; its runs still exist.' }),
  ...metered,
  failedRuns,
  sessions: count('With a run that finished in this time.'),
  lastActivityAt: Type.Union([Type.String({ format: 'date-time' }), Type.Null()], {
    description: 'When its last run in this time finished.',
  }),
})
export type AgentStats = Static<typeof AgentStats>

export const UsageTotals = Type.Object({
  ...range,
  totals: Type.Object({ toolCalls: count(), ...amounts }, { description: 'Totals of the whole tenant.' }),
  topPublishedAgents: Type.Array(
    Type.Object({
      id: Type.String(),
      slug: Type.String(),
      profile: Type.String(),
      active: Type.Boolean({ description: 'Still published.' }),
      ingressRequests: count(),
    }),
    { description: 'The ten with the most requests.' },
  ),
  budgetAlerts: Type.Optional(
    Type.Array(
      Type.Object({
        budgetId: Type.String(),
        scope: Type.String(),
        subject: Type.String({ description: 'The profile, key, end user or session; empty for the tenant.' }),
        per: Type.String(),
        percent: Type.Integer(),
        spentCents: Type.Number(),
        capCents: Type.Number(),
      }),
      { description: 'With billing: budgets that are used to 80 % or more now.' },
    ),
  ),
})
export type UsageTotals = Static<typeof UsageTotals>
