import { Type } from '@sinclair/typebox'
import { access, type App, conflict, failures, invalidRequest, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { secretErrors } from '#contracts/secrets'
import { sendList } from '#kit/lists'
import { catalogErrors, unknownEntry } from './errors.ts'
import { entryFrom, ImportBody } from './import.ts'
import { CreateEntry, EntryView, isEntryName, NameParams, ReplaceEntry } from './schema.ts'
import type { CatalogService } from './service.ts'
import { viewOf } from './views.ts'

export const tags = ['mcp catalog']

/** Why an entry is not kept. */
const unfit = [
  invalidRequest,
  secretErrors.invalidRef,
  secretErrors.unknownSecret,
  secretErrors.secretsUnavailable,
  limitErrors.limitExceeded,
] as const

export function entryReadRoutes(app: App, guard: Guard, service: CatalogService): void {
  app.get(
    '/api/mcp/catalog',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the MCP servers of the catalog',
        description: 'By name: those of the tenant, and those that the role file has for it (`managedBy: config`).',
        querystring: PageQuery,
        response: { 200: Type.Array(EntryView) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const entries = await service.list(guard.callerOf(request).tenantId, page)
      return sendList(request, reply, entries, { page, item: EntryView, shown: viewOf })
    },
  )
  app.get(
    '/api/mcp/catalog/:name',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get an entry of the catalog',
        description: 'With what is known of its server, and when it was asked last.',
        params: NameParams,
        response: { 200: EntryView, ...failures(notFound) },
      },
    },
    async (request) => viewOf(await service.find(guard.callerOf(request).tenantId, knownName(request.params.name))),
  )
}

export function entryWriteRoutes(app: App, guard: Guard, service: CatalogService): void {
  const { managedByConfig, notImportable } = catalogErrors
  app.post(
    '/api/mcp/catalog',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Enter an MCP server into the catalog',
        description: 'Profiles name it in `mcpServers`. The server itself is not asked; `POST …/test` does.',
        body: CreateEntry,
        response: { 201: EntryView, ...failures(...unfit, conflict, managedByConfig) },
      },
    },
    async (request, reply) => {
      const made = await service.create(guard.callerOf(request).tenantId, request.body)
      return reply.code(201).send(viewOf(made))
    },
  )
  app.post(
    '/api/mcp/catalog/import',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Enter an MCP server by its server.json',
        description:
          'As the official registry has it. Servers that come as packages are refused: nothing is installed here.',
        body: ImportBody,
        response: { 201: EntryView, ...failures(...unfit, notImportable, conflict, managedByConfig) },
      },
    },
    async (request, reply) => {
      const made = await service.create(guard.callerOf(request).tenantId, entryFrom(request.body))
      return reply.code(201).send(viewOf(made))
    },
  )
  app.put(
    '/api/mcp/catalog/:name',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Replace an entry of the catalog',
        description:
          'Holds for runs that begin from now on. What the body leaves out, the entry has no more. Another URL is another server: what was accepted of the old one is not of this one.',
        params: NameParams,
        body: ReplaceEntry,
        response: { 200: EntryView, ...failures(...unfit, notFound, managedByConfig) },
      },
    },
    async (request) => {
      const { name } = request.params
      return viewOf(await service.replace(guard.callerOf(request).tenantId, knownName(name), request.body))
    },
  )
  app.delete(
    '/api/mcp/catalog/:name',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete an entry of the catalog',
        description: 'Runs of profiles that name it go on without its tools, and say so.',
        params: NameParams,
        response: { 204: NoContent, ...failures(notFound, managedByConfig) },
      },
    },
    async (request, reply) => {
      await service.remove(guard.callerOf(request).tenantId, knownName(request.params.name))
      return reply.code(204).send()
    },
  )
}

/** A name that no entry can have is an unknown one, and never reaches the database. */
export function knownName(name: string): string {
  if (!isEntryName(name)) throw unknownEntry()
  return name
}
