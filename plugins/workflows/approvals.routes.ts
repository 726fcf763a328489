import { Type } from '@sinclair/typebox'
import { access, type App, failures, notFound } from '#kernel'
import { auditedAccess } from '#contracts/audit'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { isId } from '#contracts/ids'
import { type Listing, type Page, PageQuery } from '#contracts/paging'
import { type ListSql, readList, sendList } from '#kit/lists'
import { workflowErrors } from './errors.ts'
import { Approval, ApprovalParams, Resolve } from './schema.ts'
import type { WorkflowService } from './service.ts'

const tags = ['approvals']
const statuses = ['waiting', 'approved', 'rejected', 'cancelled'] as const
const unknownApproval = () => notFound({ message: 'There is no approval of this id.' })

export function approvalRoutes(app: App, guard: Guard, database: Database, service: WorkflowService): void {
  app.get(
    '/api/approvals',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List approvals',
        description: 'Newest first: those that wait, and those that were decided.',
        querystring: Type.Composite([
          PageQuery,
          Type.Object({ status: Type.Optional(Type.Union(statuses.map((one) => Type.Literal(one)))) }),
        ]),
        response: { 200: Type.Array(Approval) },
      },
    },
    async (request, reply) => {
      const { status, ...page } = request.query
      const found = await listApprovals(database, guard.callerOf(request).tenantId, page, status)
      return sendList(request, reply, found, { page, item: Approval })
    },
  )
  app.get(
    '/api/approvals/:id',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get an approval',
        params: ApprovalParams,
        response: { 200: Approval, ...failures(notFound) },
      },
    },
    async (request) => findApproval(database, guard.callerOf(request).tenantId, request.params.id),
  )
  app.post(
    '/api/approvals/:id/resolve',
    {
      ...auditedAccess('member', 'approvals.resolve'),
      schema: {
        tags,
        summary: 'Resolve an approval',
        description: 'The first decision counts. The run goes on, or fails at that node with the error `rejected`.',
        params: ApprovalParams,
        body: Resolve,
        response: { 200: Approval, ...failures(notFound, workflowErrors.alreadyResolved) },
      },
    },
    async (request) => {
      const caller = guard.callerOf(request)
      const { id } = request.params
      if (!isId('appr', id)) throw unknownApproval()
      await service.resolve(caller, id, request.body)
      return findApproval(database, caller.tenantId, id)
    },
  )
}

interface Row {
  id: string
  workflow_run_id: string
  node_id: string
  message: string
  status: (typeof statuses)[number]
  expires_at: string | null
  on_expiry: string
  comment: string | null
  resolved_by: string | null
  created_at: string
  resolved_at: string | null
}
const columns =
  'id, workflow_run_id, node_id, message, status, expires_at, on_expiry, comment, resolved_by, created_at, resolved_at'

const toApproval = (row: Row): Approval => ({
  id: row.id,
  kind: 'node',
  workflowRunId: row.workflow_run_id,
  nodeId: row.node_id,
  message: row.message,
  status: row.status,
  ...(row.expires_at === null ? {} : { expiresAt: row.expires_at }),
  onExpiry: row.on_expiry,
  ...(row.comment === null ? {} : { comment: row.comment }),
  ...(row.resolved_by === null ? {} : { resolvedBy: row.resolved_by }),
  createdAt: row.created_at,
  ...(row.resolved_at === null ? {} : { resolvedAt: row.resolved_at }),
})

function listApprovals(database: Database, tenantId: string, page: Page, status?: string): Promise<Listing<Approval>> {
  const list: ListSql = {
    columns,
    from: 'approvals',
    where: status === undefined ? 'tenant_id = $1' : 'tenant_id = $1 AND status = $2',
    values: status === undefined ? [tenantId] : [tenantId, status],
    order: { created_at: 'timestamptz', id: 'text' },
    newestFirst: true,
    atOnce: 100,
  }
  return readList({ database, tenantId }, list, page, toApproval)
}

async function findApproval(database: Database, tenantId: string, id: string): Promise<Approval> {
  const [[row]] = isId('appr', id)
    ? await database.batch<[Row[]]>(tenantId, [
        { text: `SELECT ${columns} FROM approvals WHERE tenant_id = $1 AND id = $2`, values: [tenantId, id] },
      ])
    : [[]]
  if (!row) throw unknownApproval()
  return toApproval(row)
}
