import type { FastifyBaseLogger } from 'fastify'
import { definePlugin, maybe, Settings } from '#kernel'
import { approvalErrors, Approvals } from '#contracts/approvals'
import { ApiGuard } from '#contracts/auth'
import { Billing, billingErrors, presentBilling } from '#contracts/billing'
import { Database, databaseErrors, needsDatabase, presentDatabase } from '#contracts/database'
import { Jobs, type WakeUps } from '#contracts/jobs'
import { Kv } from '#contracts/kv'
import { LinkedObjects, linkErrors } from '#contracts/linked-objects'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { McpServers } from '#contracts/mcp-servers'
import { objectErrors } from '#contracts/object-store'
import { Profiles } from '#contracts/profiles'
import { RunStore } from '#contracts/run-store'
import { Fleet } from '#contracts/runner'
import { RunDispatch } from '#contracts/runs'
import { secretErrors, Secrets } from '#contracts/secrets'
import { webhookErrors, Webhooks } from '#contracts/webhooks'
import { OwnHosts } from '#kit/own-hosts'
import { createOutputSchemas } from '#kit/schemas'
import { Calls } from './calls.ts'
import { definitionChangeRoutes, definitionRoutes } from './definitions.routes.ts'
import { countDefinitions } from './definitions.store.ts'
import { Engine } from './engine.ts'
import { workflowErrors } from './errors.ts'
import { Evaluator } from './evaluator.ts'
import { Execution } from './execution.ts'
import { LargeTurns } from './large-turns.ts'
import { createLookups } from './lookups.ts'
import { createWorkflowMetrics } from './metrics.ts'
import { mostOutput } from './outcome.ts'
import { Outputs } from './outputs.ts'
import { conclude } from './run-output.ts'
import { repairRoutes, runPartRoutes, runReadRoutes, runWriteRoutes, tellRoutes } from './runs.routes.ts'
import { WorkflowRunStore } from './runs.store.ts'
import { scheduleRoutes, scheduleTimeRoutes } from './schedules.routes.ts'
import { Schedules } from './schedules.ts'
import { WorkflowService } from './service.ts'
import { Scopes } from './scopes.ts'
import { runStreamRoute } from './stream.routes.ts'
import { sweep, Woken } from './woken.ts'
import { RunViews } from './views.store.ts'

/**
 * Workflows: graphs of agents, tools, conditions, waits and approvals, and the schedules that start them. Their state is in tables of their own.
 * Specification 2.9, 3.4, 4.11 and 6.
 */
export default definePlugin({
  name: 'workflows',
  config: Settings({
    allowHosts: OwnHosts(
      'Your own hosts that nodes of type `http` may call although they are private or speak plain http, each with its ' +
        'tenants: `api.internal:8080=acme|globex, .corp.example:443=*`.',
    ),
  }),
  errors: [
    workflowErrors,
    approvalErrors,
    billingErrors,
    databaseErrors,
    limitErrors,
    linkErrors,
    objectErrors,
    secretErrors,
    webhookErrors,
  ],
  requires: {
    guard: ApiGuard,
    database: Database,
    jobs: Jobs,
    kv: Kv,
    approvals: Approvals,
    dispatch: RunDispatch,
    runs: RunStore,
    profiles: Profiles,
    fleet: Fleet,
    billing: maybe(Billing),
    limits: maybe(TenantLimits),
    links: maybe(LinkedObjects),
    mcp: maybe(McpServers),
    secrets: maybe(Secrets),
    webhooks: maybe(Webhooks),
  },
  async setup({ config, deps, log, metrics, stopping, routes, onStart, onStop }) {
    const { approvals, guard, jobs, kv, dispatch, runs, profiles, fleet, limits, mcp, secrets, webhooks } = deps
    const database = presentDatabase(deps.database) ?? deps.database
    const wakeUps = jobs.wakeUps('workflows', async (what) => {
      const { tenantId, scheduleId, turn } = what
      if (scheduleId !== undefined) await schedules.fire(tenantId!, scheduleId, turn !== undefined)
      else await woken.wake(what)
    })
    // The attempts under way bound the number of waiting checks, so no limit is needed here: outputs wait to be checked and are not refused.
    const schemas = createOutputSchemas({ mostWaiting: Infinity, maxValueChars: mostOutput })
    const evaluator = new Evaluator()
    const large = new LargeTurns()
    const counted = createWorkflowMetrics(metrics)
    const lookups = createLookups({ database, profiles, fleet, mcp, schemas, evaluator })
    const store = new WorkflowRunStore({ database, wakeUps, limits, billing: presentBilling(deps.billing), schemas })
    const outputs = new Outputs({ links: deps.links, schemas, log })
    const scopes = new Scopes(database, outputs)
    const views = new RunViews(database, outputs)
    const calls = new Calls({ fleet, mcp, secrets, allowHosts: config.allowHosts, evaluator })
    const making = { store, dispatch, calls, outputs, scopes, evaluator, large, limits }
    const ending = { database, outputs, scopes, evaluator, large }
    const carrying = { approvals, database, wakeUps, outputs, limits, kv, metrics: counted, log, stopping }
    const execution = new Execution(making)
    const engine = new Engine({ ...carrying, execution, conclude: (...run) => conclude(ending, ...run) })
    store.beginsWith(engine)
    const told = { database, store, engine, wakeUps, outputs, limits }
    const service = new WorkflowService({ ...told, lookups, webhooks })
    const woken = new Woken({ ...told, dispatch, runs, evaluator }, service)
    const schedules = new Schedules({ database, store, wakeUps, limits, metrics: counted, lookups })
    approvals.onNodes((...decision) => service.resolve(...decision))
    onStop(async () => {
      await engine.stop()
      await calls.close()
    })
    if (!database.absent) {
      jobs.every('workflows-sweep', '*/5 * * * *', (signal) => sweep({ database, wakeUps, log }, signal))
      limits?.uses('workflowDefinitions', (tenantId) => countDefinitions(database, tenantId))
      limits?.uses('workflowRuns', (tenantId) => store.count(tenantId, 'open'))
      limits?.uses('pendingWorkflowRuns', (tenantId) => store.count(tenantId, 'pending'))
      limits?.uses('workflowCalls', (tenantId) => engine.callsOf(tenantId))
      limits?.uses('workflowSchedules', (tenantId) => schedules.count(tenantId))
      const listening: (() => Promise<void>)[] = []
      onStop(async () => {
        for (const stop of listening) await stop()
      })
      onStart(async () => {
        engine.start()
        // Any process may have ended the run of an agent, so its end is announced through the database.
        listening.push(await database.listen('workflows', wakeForAgent(wakeUps, log)))
      })
    }
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, deps.database)
      definitionRoutes(app, guard, { database, service, limits })
      definitionChangeRoutes(app, guard, { database, service })
      runReadRoutes(app, guard, views)
      runPartRoutes(app, guard, views)
      runStreamRoute(app, guard, views, { store, kv, limits })
      runWriteRoutes(app, guard, service)
      repairRoutes(app, guard, service, views)
      tellRoutes(app, guard, service, views)
      scheduleRoutes(app, guard, schedules)
      scheduleTimeRoutes(app, guard, schedules)
    })
    return {}
  },
})

/** Handles the notification `<tenant> <agent run>` of an ended agent run: wakes the workflow runs that wait for it. */
const wakeForAgent =
  (wakeUps: WakeUps, log: FastifyBaseLogger) =>
  (told: string): void => {
    const [tenantId = '', agent = ''] = told.split(' ')
    wakeUps
      .send([{ tenantId, what: { tenantId, agent }, key: agent }])
      .catch((err: unknown) => log.warn({ err }, 'a workflow was not woken for the end of a run'))
  }
