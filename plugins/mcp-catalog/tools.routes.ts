import { Type } from '@sinclair/typebox'
import { access, type App, failures, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { secretErrors } from '#contracts/secrets'
import { listOf, sendList } from '#kit/lists'
import { changeAccepted, findDiscovery } from './discoveries.store.ts'
import type { Discoveries } from './discovery.ts'
import { askErrors, catalogErrors } from './errors.ts'
import { knownName, tags } from './routes.ts'
import { AcceptAnswer, AcceptBody, NameParams, TestAnswer, ToolView } from './schema.ts'
import type { CatalogService } from './service.ts'
import { acceptedOf, toolViewOf } from './views.ts'

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

/** Tools of one part of an answer, and those of a test. */
const atOnce = 200

/** What the servers of entries have, and what runs may have of it. */
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
          'As the server defines them, and whether runs have them. Kept for some minutes; asked for anew when that is longer ago.',
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
        summary: 'Ask an MCP server what it is',
        description:
          'Connects as a run would, with the credentials of the entry, and lists its tools. Each way to fail has an error of its own. An inactive entry can be tested, too.',
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
          'By the digests of their definitions, so that nothing is accepted that nobody has seen. Runs have them from now on (`toolPolicy: review`).',
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
