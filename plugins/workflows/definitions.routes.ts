import { Type } from '@sinclair/typebox'
import { access, type App, conflict, failures, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { limitErrors, type TenantLimits } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { webhookErrors } from '#contracts/webhooks'
import { sendList } from '#kit/lists'
import {
  deleteDefinition,
  insertDefinition,
  listDefinitions,
  readDefinition,
  unknownDefinition,
} from './definitions.store.ts'
import { workflowErrors } from './errors.ts'
import { sendJson } from './runs.routes.ts'
import { DefinitionBody, DefinitionChange, DefinitionInfo, DefinitionParams, DefinitionPreview } from './schema.ts'
import type { WorkflowService } from './service.ts'

const tags = ['workflows']
/** The largest request body in bytes: enough for a definition of 10,000 nodes. */
const bodyLimit = 8 * 1024 * 1024

interface Deps {
  readonly database: Database
  readonly service: WorkflowService
  readonly limits: TenantLimits | undefined
}

export function definitionRoutes(app: App, guard: Guard, { database, service, limits }: Deps): void {
  const { invalidWorkflow } = workflowErrors
  app.get(
    '/api/workflows/definitions',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List workflow definitions',
        description: 'Sorted by name, without their nodes.',
        querystring: PageQuery,
        response: { 200: Type.Array(DefinitionPreview) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const found = await listDefinitions(database, guard.callerOf(request).tenantId, page)
      return sendList(request, reply, found, { page, item: DefinitionPreview })
    },
  )
  app.post(
    '/api/workflows/definitions',
    {
      ...access('admin'),
      bodyLimit,
      schema: {
        tags,
        summary: 'Create a workflow definition',
        description: 'All problems are reported at once, each with its path.',
        body: DefinitionBody,
        response: {
          201: DefinitionInfo,
          ...failures(invalidWorkflow, limitErrors.limitExceeded, ...Object.values(webhookErrors)),
        },
      },
    },
    async (request, reply) => {
      const { tenantId, keyId } = guard.callerOf(request)
      const definition = await service.check(tenantId, request.body)
      const most = limits?.of(tenantId).workflowDefinitions ?? 1_000_000
      limits?.stored.admit(tenantId)
      const made = await insertDefinition(database, tenantId, definition, { createdBy: keyId, most })
      limits?.stored.add(tenantId, JSON.stringify(definition).length)
      return reply.code(201).send(made)
    },
  )
  app.get(
    '/api/workflows/definitions/:id',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get a workflow definition',
        params: DefinitionParams,
        response: { 200: DefinitionInfo, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const found = await readDefinition(database, guard.callerOf(request).tenantId, request.params.id)
      if (found === undefined) throw unknownDefinition()
      return sendJson(reply, found)
    },
  )
}

export function definitionChangeRoutes(app: App, guard: Guard, { database, service }: Omit<Deps, 'limits'>): void {
  const { invalidWorkflow } = workflowErrors
  app.patch(
    '/api/workflows/definitions/:id',
    {
      ...access('admin'),
      bodyLimit,
      schema: {
        tags,
        summary: 'Change a workflow definition',
        description:
          'Replaces the fields in the body, as a new version. Runs keep their version. What changes nothing makes no version.',
        params: DefinitionParams,
        body: DefinitionChange,
        response: {
          200: DefinitionInfo,
          ...failures(invalidWorkflow, notFound, conflict, limitErrors.limitExceeded, ...Object.values(webhookErrors)),
        },
      },
    },
    async (request) => service.change(guard.callerOf(request), request.params.id, request.body),
  )
  app.delete(
    '/api/workflows/definitions/:id',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a workflow definition',
        description:
          'Its runs stay and continue. Its schedules fail until they are deleted, and say so in their history.',
        params: DefinitionParams,
        response: { 204: NoContent, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      await deleteDefinition(database, guard.callerOf(request).tenantId, request.params.id)
      return reply.code(204).send()
    },
  )
}
