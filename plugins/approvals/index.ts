import { definePlugin, maybe } from '#kernel'
import { Approvals, approvalErrors } from '#contracts/approvals'
import { ApiGuard } from '#contracts/auth'
import { Database, databaseErrors, needsDatabase, presentDatabase } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { EndUserData, retentionErrors } from '#contracts/retention'
import { ApprovalDesk } from './desk.ts'
import { createEndUserData } from './store.ts'
import { createApprovalMetrics } from './metrics.ts'
import { approvalRoutes } from './routes.ts'

/**
 * Approvals by people: of tool calls that a profile names in `requireApproval`, and of nodes of workflows. The asking run or node waits until
 * somebody decides or the approval expires.
 */
export default definePlugin({
  name: 'approvals',
  errors: [approvalErrors, databaseErrors, limitErrors, retentionErrors],
  requires: { guard: ApiGuard, database: Database, jobs: maybe(Jobs), limits: maybe(TenantLimits) },
  provides: { approvals: Approvals, people: EndUserData },
  async setup({ deps, metrics, routes }) {
    const { guard, database, jobs, limits } = deps
    const stored = presentDatabase(database)
    const desk = new ApprovalDesk({ database, limits, metrics: createApprovalMetrics(metrics) })
    if (stored && jobs) {
      desk.wakeBy(jobs.wakeUps('approvals', (what) => desk.wake(what)))
      jobs.every('approvals-sweep', '*/2 * * * *', (signal) => desk.sweep(signal))
    }
    if (stored) limits?.uses('openApprovals', (tenantId) => desk.countOpen(tenantId))
    routes('conductor', async (app) => {
      guard.protect(app)
      needsDatabase(app, database)
      approvalRoutes(app, guard, { database, desk })
    })
    return { approvals: desk, people: stored ? { approval: createEndUserData(stored) } : {} }
  },
})
