import { Readable } from 'node:stream'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failures, NoContent, notFound } from '#kernel'
import { approvalErrors } from '#contracts/approvals'
import { auditedAccess } from '#contracts/audit'
import type { Guard } from '#contracts/auth'
import { fundsErrors } from '#contracts/billing'
import { limitErrors } from '#contracts/limits'
import { objectErrors } from '#contracts/object-store'
import { PageQuery } from '#contracts/paging'
import { webhookErrors } from '#contracts/webhooks'
import { sendBody } from '#kit/files'
import { sendList } from '#kit/lists'
import { workflowErrors } from './errors.ts'
import {
  CreateRun,
  NodeParams,
  NodeSnapshot,
  NodeUpdate,
  Repair,
  Rerun,
  RunAccepted,
  RunListed,
  RunParams,
  RunSnapshot,
  runStatuses,
  Signal,
  SignalParams,
} from './schema.ts'
import type { WorkflowService } from './service.ts'
import type { RunViews } from './views.store.ts'

const tags = ['workflows']
const bodyLimit = 8 * 1024 * 1024
const { wrongApprover } = approvalErrors
const { limitReached, limitExceeded } = limitErrors
const { invalidWorkflow, invalidInput, notPaused, nodeOver, outputGone, runOver } = workflowErrors
const accepted = ({ id, status }: Omit<RunAccepted, 'runId'>): RunAccepted => ({ id, runId: id, status })

export function runReadRoutes(app: App, guard: Guard, views: RunViews): void {
  app.get(
    '/api/workflows/runs',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List workflow runs',
        description: 'Newest first, without their nodes.',
        querystring: Type.Composite([
          PageQuery,
          Type.Object({
            status: Type.Optional(Type.Union(runStatuses.map((status) => Type.Literal(status)))),
            workflowDefinitionId: Type.Optional(Type.String({ maxLength: 64 })),
            scheduleId: Type.Optional(Type.String({ maxLength: 64 })),
          }),
        ]),
        response: { 200: Type.Array(RunListed) },
      },
    },
    async (request, reply) => {
      const { status, workflowDefinitionId, scheduleId, ...page } = request.query
      const { tenantId } = guard.callerOf(request)
      const found = await views.list(tenantId, page, { status, workflowDefinitionId, scheduleId })
      return sendList(request, reply, found, { page, item: RunListed })
    },
  )
  app.get(
    '/api/workflows/runs/:id',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get a workflow run',
        description:
          'The state at one moment, with all its nodes. Statuses are numbers. What is too large for it has a route of its own.',
        params: RunParams,
        response: { 200: RunSnapshot, ...failures(notFound) },
      },
    },
    async (request, reply) =>
      sendJson(reply, (await views.snapshot(guard.callerOf(request).tenantId, request.params.id)).json),
  )
}

/** What snapshots contain only while it is small. */
export function runPartRoutes(app: App, guard: Guard, views: RunViews): void {
  app.get(
    '/api/workflows/runs/:id/nodes/:nodeId',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get a node of a workflow run',
        description: 'Includes its whole output.',
        params: NodeParams,
        response: { 200: NodeSnapshot, ...failures(notFound, outputGone, objectErrors.storageUnavailable) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      return streamJson(request, reply, await views.node(tenantId, request.params.id, request.params.nodeId))
    },
  )
  app.get(
    '/api/workflows/runs/:id/input',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get the input of a workflow run',
        description: 'The whole input, however large; snapshots contain only small ones.',
        params: RunParams,
        response: { 200: Type.Unknown(), ...failures(notFound) },
      },
    },
    async (request, reply) => sendJson(reply, await views.input(guard.callerOf(request).tenantId, request.params.id)),
  )
  app.get(
    '/api/workflows/runs/:id/output',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get the output of a workflow run',
        description: 'The whole output, however large; snapshots contain only small ones.',
        params: RunParams,
        response: { 200: Type.Unknown(), ...failures(notFound, outputGone, objectErrors.storageUnavailable) },
      },
    },
    async (request, reply) =>
      streamJson(request, reply, await views.output(guard.callerOf(request).tenantId, request.params.id)),
  )
}

/** Sends a text that is JSON already. */
export const sendJson = (reply: FastifyReply, json: string): FastifyReply =>
  reply.header('content-type', 'application/json; charset=utf-8').send(Buffer.from(json))

/** Streams JSON of the object store while it is read, so that a slow client holds a connection but no memory. */
function streamJson(
  { method }: FastifyRequest,
  reply: FastifyReply,
  json: string | AsyncIterable<Uint8Array>,
): FastifyReply {
  if (typeof json === 'string') return sendJson(reply, json)
  void reply.header('content-type', 'application/json; charset=utf-8')
  return method === 'HEAD' ? reply.send() : sendBody(reply, Readable.from(json, { objectMode: false }))
}

export function runWriteRoutes(app: App, guard: Guard, service: WorkflowService): void {
  app.post(
    '/api/workflows/runs',
    {
      ...access('member'),
      bodyLimit,
      schema: {
        tags,
        summary: 'Create a workflow run',
        description:
          'Runs the current version of a stored definition, or a definition in the body. It starts at once by default.',
        body: CreateRun,
        response: {
          202: RunAccepted,
          ...failures(
            invalidWorkflow,
            invalidInput,
            notFound,
            limitReached,
            limitExceeded,
            ...Object.values(webhookErrors),
            ...fundsErrors,
          ),
        },
      },
    },
    async (request, reply) =>
      reply.code(202).send(accepted(await service.create(guard.callerOf(request), request.body))),
  )
  app.post(
    '/api/workflows/runs/:id/start',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Start a workflow run',
        description: 'Idempotent: a started run stays unchanged.',
        params: RunParams,
        response: { 202: RunAccepted, ...failures(notFound, limitReached, limitExceeded, ...fundsErrors) },
      },
    },
    async (request, reply) => {
      const { id } = request.params
      return reply.code(202).send(accepted({ id, status: await service.start(guard.callerOf(request).tenantId, id) }))
    },
  )
  app.post(
    '/api/workflows/runs/:id/cancel',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Cancel a workflow run',
        description: 'With its running agents and child workflows. Idempotent: a run that is over stays unchanged.',
        params: RunParams,
        response: { 202: RunAccepted, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const { id } = request.params
      return reply.code(202).send(accepted({ id, status: await service.cancel(guard.callerOf(request).tenantId, id) }))
    },
  )
}

export function repairRoutes(app: App, guard: Guard, service: WorkflowService, views: RunViews): void {
  app.post(
    '/api/workflows/runs/:id/repair',
    {
      ...auditedAccess('member', 'workflow-runs.repair'),
      bodyLimit,
      schema: {
        tags,
        summary: 'Repair a paused workflow run',
        description:
          '`retry_node` tries a failed node again, `replace_node` replaces it, or a node that has not begun, `add_dependency` makes a node wait for others, and `abort` gives the run up.',
        params: RunParams,
        body: Repair,
        response: { 200: RunSnapshot, ...failures(invalidWorkflow, notFound, notPaused, nodeOver, wrongApprover) },
      },
    },
    async (request, reply) => {
      const caller = guard.callerOf(request)
      await service.repair(caller, request.params.id, request.body)
      return sendJson(reply, (await views.snapshot(caller.tenantId, request.params.id)).json)
    },
  )
  app.post(
    '/api/workflows/runs/:id/rerun',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Run a workflow again from a node',
        description: 'As a new run: the node and its dependents run again; the results of all others are kept.',
        params: RunParams,
        body: Rerun,
        response: {
          202: RunAccepted,
          ...failures(notFound, nodeOver, wrongApprover, limitReached, limitExceeded, ...fundsErrors),
        },
      },
    },
    async (request, reply) => {
      const made = await service.rerun(guard.callerOf(request), request.params.id, request.body.fromNodeId)
      return reply.code(202).send(accepted(made))
    },
  )
}

export function tellRoutes(app: App, guard: Guard, service: WorkflowService, views: RunViews): void {
  app.post(
    '/api/workflows/runs/:id/signals/:name',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Send a signal to a workflow run',
        description:
          'For the waits of that name. Up to a hundred signals that no node waits for yet are kept, each for the next wait.',
        params: SignalParams,
        body: Signal,
        response: { 204: NoContent, ...failures(notFound, runOver, nodeOver, limitExceeded) },
      },
      preValidation: async (request) => void (request.body ??= {}),
    },
    async (request, reply) => {
      const { id, name } = request.params
      // A body without `payload` is the payload.
      const body = request.body as Readonly<Record<string, unknown>>
      const payload = 'payload' in body ? body['payload'] : body
      await service.signal(guard.callerOf(request).tenantId, id, name, payload)
      return reply.code(204).send()
    },
  )
  app.patch(
    '/api/workflows/runs/:id/nodes/:nodeId',
    {
      ...auditedAccess('member', 'workflow-runs.update-node'),
      schema: {
        tags,
        summary: 'Set the status of a node',
        description: 'Ends a node that has not ended, or that failed and blocks its run.',
        params: NodeParams,
        body: NodeUpdate,
        response: { 200: NodeSnapshot, ...failures(notFound, nodeOver, runOver, wrongApprover, limitExceeded) },
      },
    },
    async (request, reply) => {
      const caller = guard.callerOf(request)
      const { id, nodeId } = request.params
      await service.update(caller, id, nodeId, request.body)
      return streamJson(request, reply, await views.node(caller.tenantId, id, nodeId))
    },
  )
}
