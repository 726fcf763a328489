import { Type } from '@sinclair/typebox'
import { access, type App, conflict, failures, invalidRequest, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { secretErrors } from '#contracts/secrets'
import { listOf, sendList } from '#kit/lists'
import { changeAccepted, type Discovery, findDiscovery, type FoundTool } from './discoveries.store.ts'
import { type Discoveries, stateOf } from './discovery.ts'
import { askErrors, catalogErrors, unknownEntry } from './errors.ts'
import { ImportBody } from './import.ts'
import {
  AcceptAnswer,
  AcceptBody,
  CreateEntry,
  EntryView,
  isEntryName,
  NameParams,
  ReplaceEntry,
  TestAnswer,
  ToolView,
} from './schema.ts'
import type { CatalogService } from './service.ts'
import type { Entry } from './entry.ts'
import { shownHeaders } from './headers.ts'
import type { KnownEntry } from './store.ts'

export const tags = ['mcp catalog']

/** The errors of a write of an entry. */
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
        description: 'Includes the known state of its server, and when it was last contacted.',
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
        summary: 'Add an MCP server to the catalog',
        description: 'Profiles name it in `mcpServers`. The server itself is not contacted; `POST …/test` does that.',
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
        summary: 'Add an MCP server by its server.json',
        description:
          'In the form of the official registry. Servers that come as packages are refused: this server installs nothing.',
        body: ImportBody,
        response: { 201: EntryView, ...failures(...unfit, notImportable, conflict, managedByConfig) },
      },
    },
    async (request, reply) => {
      const made = await service.import(guard.callerOf(request).tenantId, request.body)
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
          'Applies to runs that start from now on. A field that the body leaves out is removed. A new URL counts as a new server, without accepted tools.',
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
        description: 'Runs of profiles that name it continue without its tools, and say so.',
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

const { unknownSecret, secretExpired, secretUnfit, secretUnreadable, secretsUnavailable } = secretErrors
const asking = [
  ...askErrors,
  unknownSecret,
  secretExpired,
  secretUnfit,
  secretUnreadable,
  secretsUnavailable,
  notFound,
  limitErrors.limitExceeded,
] as const

/** The most tools in one page of an answer, or in the answer of a test. */
const atOnce = 200

/** The tools of entries' servers, and which of them runs may use. */
export function toolRoutes(
  app: App,
  guard: Guard,
  { database, service, discoveries }: { database: Database; service: CatalogService; discoveries: Discoveries },
): void {
  app.get(
    '/api/mcp/catalog/:name/tools',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the tools of an MCP server',
        description:
          'As the server defines them, and whether runs have them. The list is kept for some minutes and then requested again.',
        params: NameParams,
        querystring: PageQuery,
        response: { 200: Type.Array(ToolView), ...failures(...asking) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const { tenantId } = guard.callerOf(request)
      const { entry } = await service.find(tenantId, knownName(request.params.name))
      const { tools, accepted } = await discoveries.current(tenantId, entry)
      const list = listOf(tools ?? [], page, atOnce, toolViewOf(entry, accepted))
      return sendList(request, reply, list, { page, item: ToolView })
    },
  )
  app.post(
    '/api/mcp/catalog/:name/test',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Test an MCP server',
        description:
          'Connects as a run would, with the credentials of the entry, and lists the tools. Each kind of failure has its own error. An inactive entry can be tested, too.',
        params: NameParams,
        response: { 200: TestAnswer, ...failures(...asking) },
      },
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const { entry } = await service.find(tenantId, knownName(request.params.name))
      const { server, tools, latencyMs } = await discoveries.ask(tenantId, entry)
      const known = await findDiscovery(database, tenantId, entry)
      const shown = tools.slice(0, atOnce).map(toolViewOf(entry, known?.accepted ?? {}))
      return { ok: true as const, latencyMs, server, tools: shown, total: tools.length }
    },
  )
  app.post(
    '/api/mcp/catalog/:name/accept',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Accept tools of an MCP server',
        description:
          'By the digests of their definitions, so that only reviewed definitions are accepted. Runs have them from now on (`toolPolicy: review`).',
        params: NameParams,
        body: AcceptBody,
        response: { 200: AcceptAnswer, ...failures(notFound, catalogErrors.digestNotOffered) },
      },
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const { entry } = await service.find(tenantId, knownName(request.params.name))
      const { digests } = request.body
      const known = await changeAccepted(database, tenantId, entry, ({ tools, accepted }) => {
        const offered = new Map((tools ?? []).map(({ name, digest }) => [digest, name]))
        const strange = digests.filter((digest) => !offered.has(digest))
        if (strange.length > 0) throw digestNotOffered(strange)
        const names = new Set(offered.values())
        const still = Object.entries(accepted).filter(([name]) => names.has(name))
        return Object.fromEntries([...still, ...digests.map((digest) => [offered.get(digest)!, digest] as const)])
      })
      return acceptedOf(entry, known)
    },
  )
}

const digestNotOffered = (digests: readonly string[]) =>
  catalogErrors.digestNotOffered({
    message: 'The server does not offer these definitions (any more): list its tools again, and accept what is there.',
    detail: { digests: digests.slice(0, 20) },
  })

/** A name in a form that no entry can have is answered as unknown, without a query. */
export function knownName(name: string): string {
  if (!isEntryName(name)) throw unknownEntry()
  return name
}

/** An entry as the API answers it. */
function viewOf({ entry, server, ...known }: KnownEntry): EntryView {
  const { headers, allowedTools, oauth, ...rest } = entry
  const { createdAt, updatedAt, toolCount, listedAt } = known
  const health = healthOf(known)
  return {
    ...rest,
    url: entry.managedBy === 'config' ? withoutQuery(entry.url) : entry.url,
    ...(headers ? { headers: shownHeaders(headers) } : {}),
    ...(oauth ? { oauth } : {}),
    ...(allowedTools ? { allowedTools: [...allowedTools] } : {}),
    ...(createdAt === null ? {} : { createdAt }),
    ...(updatedAt === null ? {} : { updatedAt }),
    ...(server ? { server } : {}),
    ...(toolCount === null || listedAt === null ? {} : { tools: { count: toolCount, listedAt } }),
    ...(Object.keys(health).length > 0 ? { health } : {}),
  }
}

function healthOf({ succeededAt, latencyMs, failedAt, failure }: Omit<KnownEntry, 'entry' | 'server'>) {
  return {
    ...(succeededAt === null ? {} : { lastSuccessAt: succeededAt }),
    ...(latencyMs === null ? {} : { latencyMs }),
    ...(failedAt === null ? {} : { lastFailureAt: failedAt }),
    ...(failure ? { lastFailure: failure } : {}),
  }
}

/** The query of a URL in the role file is removed, because it may hold an API key of the operator. */
const withoutQuery = (url: string): string => url.replace(/[?#].*$/s, '')

const toolViewOf =
  (entry: Entry, accepted: Discovery['accepted']) =>
  ({ name, title, description, inputSchema, digest }: FoundTool): ToolView => ({
    name,
    ...(title === undefined ? {} : { title }),
    ...(description === undefined ? {} : { description }),
    inputSchema,
    digest,
    state: stateOf(entry, accepted, name, digest),
  })

/** The tools that runs may use, and those that an admin has not accepted. */
function acceptedOf(entry: Entry, { tools, accepted }: Discovery): AcceptAnswer {
  const states = (tools ?? []).map(({ name, digest }) => ({
    state: stateOf(entry, accepted, name, digest),
    tool: { name, digest },
  }))
  return {
    accepted: states.filter(({ state }) => state === 'accepted').map(({ tool }) => tool),
    held: states.filter(({ state }) => state === 'new' || state === 'changed').map(({ tool }) => tool),
  }
}
