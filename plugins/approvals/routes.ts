import { Type } from '@sinclair/typebox'
import { access, type App, failures, notFound } from '#kernel'
import { approvalErrors } from '#contracts/approvals'
import { auditedAccess } from '#contracts/audit'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { PageQuery } from '#contracts/paging'
import { sendList } from '#kit/lists'
import type { ApprovalDesk } from './desk.ts'
import { Approval, findApproval, kinds, listApprovals, Resolve, statuses } from './store.ts'

const tags = ['approvals']
const unknownApproval = () => notFound({ message: 'There is no approval of this id.' })
const Params = Type.Object({ id: Type.String({ description: 'Id of the approval.' }) })
const Id = Type.Optional(Type.String({ minLength: 1, maxLength: 128 }))
const Query = Type.Object({
  ...PageQuery.properties,
  status: Type.Optional(Type.Union(statuses.map((one) => Type.Literal(one)))),
  kind: Type.Optional(Type.Union(kinds.map((one) => Type.Literal(one)))),
  runId: Id,
  workflowRunId: Id,
  profile: Id,
})

export function approvalRoutes(
  app: App,
  guard: Guard,
  { database, desk }: { readonly database: Database; readonly desk: ApprovalDesk },
): void {
  app.get(
    '/api/approvals',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List approvals',
        description: 'Newest first: waiting questions, and decisions.',
        querystring: Query,
        response: { 200: Type.Array(Approval) },
      },
    },
    async (request, reply) => {
      const { limit, offset, cursor, ...filter } = request.query
      const page = {
        ...(limit === undefined ? {} : { limit }),
        ...(offset === undefined ? {} : { offset }),
        ...(cursor === undefined ? {} : { cursor }),
      }
      const found = await listApprovals(database, guard.callerOf(request).tenantId, page, filter)
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
        params: Params,
        response: { 200: Approval, ...failures(notFound) },
      },
    },
    async (request) => {
      const found = await findApproval(database, guard.callerOf(request).tenantId, request.params.id)
      if (!found) throw unknownApproval()
      return found
    },
  )
  app.post(
    '/api/approvals/:id/resolve',
    {
      ...auditedAccess('member', 'approvals.resolve'),
      schema: {
        tags,
        summary: 'Resolve an approval',
        description:
          'The first decision counts. An approved call is made; for a rejected one the model gets the comment. A workflow continues, or fails at that node with the error `rejected`.',
        params: Params,
        body: Resolve,
        response: {
          200: Approval,
          ...failures(notFound, approvalErrors.alreadyResolved, approvalErrors.wrongApprover),
        },
      },
    },
    async (request) => {
      const caller = guard.callerOf(request)
      const { id } = request.params
      const found = await findApproval(database, caller.tenantId, id)
      if (!found) throw unknownApproval()
      await desk.resolve(caller, found, request.body)
      return (await findApproval(database, caller.tenantId, id)) ?? found
    },
  )
}
