import { definePlugin, maybe } from '#kernel'
import { Approvals, approvalErrors } from '#contracts/approvals'
import { ApiGuard } from '#contracts/auth'
import { Database, databaseErrors, needsDatabase, presentDatabase } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { EndUserData, type EndUserStore } from '#contracts/retention'
import { ApprovalDesk } from './desk.ts'
import { createApprovalMetrics } from './metrics.ts'
import { approvalRoutes } from './routes.ts'
import { columns, type Row, toApproval } from './store.ts'

/**
 * Approvals by people: of tool calls that a profile names in `requireApproval`, and of nodes of workflows. The asking run or node waits until
 * somebody decides or the approval expires.
 */
export default definePlugin({
  name: 'approvals',
  errors: [approvalErrors, databaseErrors, limitErrors],
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

/** Approvals per read: the arguments of each may have a megabyte. */
const atOnce = 20

/**
 * The personal data in approvals: what agents asked for on behalf of an end user. Approvals that still wait are not erased here; they go with their
 * runs.
 */
const createEndUserData = (database: Database): EndUserStore => ({
  async *items(tenantId, endUserId) {
    for (let after = '', rows: Row[]; ; after = rows.at(-1)!.id) {
      const page = {
        text: `SELECT ${columns} FROM approvals WHERE tenant_id = $1 AND end_user_id = $2 AND id > $3 ORDER BY id LIMIT ${atOnce}`,
        values: [tenantId, endUserId, after],
      }
      ;[rows] = await database.as('reads').batch<[Row[]]>(tenantId, [page])
      if (rows.length === 0) return
      yield rows.map((row) => ({ ...toApproval(row) }))
    }
  },
  async erase(tenantId, endUserId) {
    const gone = `DELETE FROM approvals WHERE tenant_id = $1 AND end_user_id = $2 AND status <> 'waiting' RETURNING 1`
    const [rows] = await database.batch<[object[]]>(tenantId, [{ text: gone, values: [tenantId, endUserId] }])
    return rows.length
  },
})
