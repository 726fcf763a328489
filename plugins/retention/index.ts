import { Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings } from '#kernel'
import { AuditLog } from '#contracts/audit'
import { ApiGuard } from '#contracts/auth'
import { Database, databaseErrors, needsDatabase } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import {
  EndUserData,
  mostDays,
  Retention,
  type RetentionDays,
  retentionErrors,
  retentionKinds,
  retentionNames,
  TenantData,
} from '#contracts/retention'
import { fleetErrors } from '#contracts/run-errors'
import { Fleet } from '#contracts/runner'
import { Batches } from './batches.ts'
import { holdTeller } from './data.ts'
import { eraseTenant } from './erasure.ts'
import { Figures } from './figures.ts'
import { pass } from './pass.ts'
import { EndUsers } from './people.ts'
import { recount } from './tables.ts'
import { endUserRoutes } from './routes.ts'

const job = 'retention'
const recountJob = 'stored-bytes'
const days = (least: number, description: string) =>
  Type.Optional(Type.Integer({ minimum: least, maximum: mostDays, description }))

/** Deletes data that is older than its tenant wants to keep it. Also erases whole tenants and end users, and records this in the audit log. */
export default definePlugin({
  name: 'retention',
  config: Settings({
    ...Object.fromEntries(
      retentionNames.map((kind) => [kind, days(retentionKinds[kind].least, retentionKinds[kind].about)]),
    ),
    eraseAfter: days(0, 'Days from the deletion of a tenant to its erasure; absent: it is erased only on request.'),
    schedule: Type.String({ default: '17 * * * *', description: 'When a pass begins: five fields of cron, in UTC.' }),
    recount: Type.String({
      default: '41 2 * * *',
      description: 'When the stored bytes of each tenant are counted anew for its limit storedBytes; as `schedule`.',
    }),
    pauseMs: Type.Integer({
      default: 50,
      minimum: 0,
      maximum: 60_000,
      description: 'Pause between two small transactions.',
    }),
    operatorTenant: Type.String({
      default: 'default',
      description: 'The tenant whose audit log records the erasure of tenants.',
    }),
  }),
  errors: [retentionErrors, databaseErrors, fleetErrors],
  requires: {
    guard: ApiGuard,
    database: Database,
    jobs: Jobs,
    trail: AuditLog,
    fleet: maybe(Fleet),
    data: TenantData,
    people: EndUserData,
  },
  provides: { retention: Retention },
  async setup({ config, deps, log, metrics, routes }) {
    const { eraseAfter, schedule, recount: nightly, pauseMs, operatorTenant, ...rest } = config
    const { guard, database, jobs, trail, fleet, data, people } = deps
    const defaults = rest as RetentionDays
    const figures = new Figures(metrics)
    const batches = new Batches(database, pauseMs, figures.deleted)
    const endUsers = new EndUsers({ database, batches, pauseMs, trail, fleet, people, data, log })
    const erasure = { database, batches, data, fleet, trail, log, operatorTenant }
    const tellHold = holdTeller({ database, data })
    const parts = { database, batches, endUsers, defaults, figures, data, log, tellHold }
    jobs.every(job, schedule, (signal) =>
      pass({ ...parts, eraseTenant: (id, until, away) => eraseTenant({ ...erasure, away }, id, until) }, signal),
    )
    jobs.every(recountJob, nightly, (signal) => recount({ database, data, pauseMs, log }, signal))
    const wake = (): Promise<void> =>
      jobs
        .ask(job)
        .catch((err: unknown) => log.warn({ err }, 'retention could not be started now; it starts by its schedule'))
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      endUserRoutes(app, guard, { database, endUsers, people }, () => void wake())
    })
    return { retention: { defaults, eraseAfter, wake, tellHold } }
  },
})
