import { Type } from '@sinclair/typebox'
import { access, type App, definePlugin, maybe } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Billing, presentBilling } from '#contracts/billing'
import { Database, needsDatabase } from '#contracts/database'
import { PublishedStats, SeriesQuery, Timeseries, WindowQuery } from '#contracts/stats'
import { sendList } from '#kit/lists'
import { createPublishedStats, readAgents, readOverview, readUsage } from './figures.ts'
import { createReader, type Reader } from './reader.ts'
import { AgentsQuery, AgentStats, Overview, UsageTotals } from './schema.ts'
import { readSeries } from './series.ts'
import { gridOf, type Range, rangeOf } from './window.ts'

/** Stats and usage of a tenant, read from the meters that runs, gateways and sandboxes write. */
export default definePlugin({
  name: 'stats',
  requires: { guard: ApiGuard, database: Database, billing: maybe(Billing) },
  provides: { published: PublishedStats },
  async setup({ deps, routes }) {
    const reader = createReader(deps.database)
    routes('conductor', async (app) => {
      deps.guard.protect(app)
      needsDatabase(app, deps.database)
      statsRoutes(app, deps.guard, reader, presentBilling(deps.billing))
    })
    return { published: createPublishedStats(reader) }
  },
})

const tags = ['stats']
const lag = 'Requests are metered by the minute, so the last one or two are not in it yet.'

/** Routes for a tenant's figures. They read what runs recorded when they ended. Specification 4.15. */
function statsRoutes(app: App, guard: Guard, reader: Reader, billing: Billing | undefined): void {
  const ranged = async ({ window = '24h' }: { window?: string }): Promise<Range> => rangeOf(window, await reader.now())
  app.get(
    '/api/stats/overview',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Sum up a window',
        description: `Runs, sessions, tokens, cost, durations, and what exists right now. ${lag}`,
        querystring: WindowQuery,
        response: { 200: Overview },
      },
    },
    async (request) => readOverview(reader, guard.callerOf(request).tenantId, await ranged(request.query)),
  )
  app.get(
    '/api/stats/timeseries',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Show a window as a series of buckets',
        description: `Runs count in the bucket in which they ended. ${lag}`,
        querystring: SeriesQuery,
        response: { 200: Timeseries },
      },
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      return readSeries(reader, tenantId, gridOf(request.query, await reader.now()))
    },
  )
  app.get(
    '/api/stats/agents',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Compare profiles',
        description:
          'One row for every profile, with zeros when none of its runs ended in the window. The header `X-Window` says which window was used.',
        querystring: AgentsQuery,
        response: { 200: Type.Array(AgentStats) },
      },
    },
    async (request, reply) => {
      const { sort = 'last_activity_desc', ...page } = request.query
      const range = await ranged(page)
      const agents = await readAgents(reader, guard.callerOf(request).tenantId, range, sort, page)
      return sendList(request, reply, agents, { page, item: AgentStats, headers: { 'x-window': range.window } })
    },
  )
  app.get(
    '/api/usage',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Read the usage meters',
        description: `Tool calls, sandbox compute and public requests of the tenant, and its busiest published agents. ${lag}`,
        querystring: WindowQuery,
        response: { 200: UsageTotals },
      },
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const usage = await readUsage(reader, tenantId, await ranged(request.query))
      return billing ? { ...usage, budgetAlerts: [...(await billing.alerts(tenantId))] } : usage
    },
  )
}
